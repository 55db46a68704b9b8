// Moves what the page already shows: zoom, axes, legend, numbers under the pointer. Nothing is
// computed here but places; the elements of every curve are in the page, and keep their number.
"use strict";

const MARGIN = { left: 62, right: 14, top: 12, bottom: 44 };
const SVG = "http://www.w3.org/2000/svg";

function node(tag, attributes, parent, text) {
  const made = parent instanceof SVGElement ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
}

const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

function format(value, digits = 4) {
  if (value === 0) return "0";
  const power = Math.floor(Math.log10(Math.abs(value)) + 1e-9);
  if (power >= -3 && power < 5) {
    const rounded = Math.abs(value) < 10 ** digits ? Number(value.toPrecision(digits)) : Math.round(value);
    return String(rounded).replace("-", "−").replace(/^(−?\d{2})(\d{3})(?=\.|$)/, "$1,$2");
  }
  const mantissa = Number((value / 10 ** power).toPrecision(digits));
  const front = mantissa === 1 ? "" : `${String(mantissa).replace("-", "−")}·`;
  return `${front}10${[...String(power)].map((c) => SUPERSCRIPTS[c]).join("")}`;
}

function linearTicks(low, high, most) {
  const raw = (high - low) / Math.max(most, 1), unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * unit).find((s) => s >= raw * 0.999);
  const places = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) places.push(k * step);
  return places.map((v) => (Math.abs(v) < 1e-9 * step ? 0 : v));
}

// Places on an axis of decimal logarithms: powers of ten, or as many marks in each as fit.
function decadeTicks(low, high, most) {
  const among = (marks) => {
    const places = [];
    for (let k = Math.floor(low); k <= high; k++) {
      for (const m of marks) {
        const u = k + Math.log10(m);
        if (u >= low - 1e-9 && u <= high + 1e-9) places.push(u);
      }
    }
    return places;
  };
  for (const marks of high - low <= 2.5 ? [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1, 3]] : []) {
    const places = among(marks);
    if (places.length > 1 && places.length <= most) return places;
  }
  const whole = among([1]), stride = Math.ceil(whole.length / most);
  if (whole.length > 1) return whole.filter((k) => k % stride === 0);
  return linearTicks(10 ** low, 10 ** high, most).filter((v) => v > 0).map(Math.log10);
}

const extent = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);

class Chart {
  constructor(host, spec) {
    this.host = host; this.spec = spec; this.which = 0;
    this.area = host.querySelector(".plot"); this.svg = this.area.querySelector("svg");
    this.svg.setAttribute("tabindex", 0);
    const groups = [...this.svg.querySelectorAll("g.view")];
    this.views = spec.views.map((view, i) => this.prepare(view, groups[i]));
    this.shown = spec.views[0].series.map((series) => !series.hidden);
    this.toolbar();
    this.readout = node("output", { class: "readout", "aria-live": "polite" }, host,
      "Drag across the picture to zoom, double-click to see everything again.");
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.area);
    this.draw();
  }

  get view() { return this.views[this.which]; }

  prepare(spec, group) {
    const series = spec.series.map((_, i) => group.querySelector(`g.series[data-place="${i}"]`));
    const view = {
      spec, group, series, logX: spec.x.log, logY: spec.y.log, axes: group.querySelector("g.axes"),
      clip: group.querySelector("clipPath rect"), thresholds: [...group.querySelectorAll("g.threshold")],
    };
    view.rows = spec.series.map((s, i) => spec.series.slice(i + 1).filter((other) => other.kind === "marks").length);
    const body = group.querySelector("g.body");
    view.selection = node("rect", { class: "selection", width: 0 }, body);
    view.cross = node("line", { class: "cross", visibility: "hidden" }, body);
    return view;
  }

  toolbar() {
    const bar = document.createElement("div");
    set(bar, { class: "tools", role: "toolbar", "aria-label": `Tools of: ${this.spec.title}` });
    this.area.before(bar);
    const button = (text, label, act) => {
      const made = node("button", { type: "button", title: label, "aria-label": label }, bar, text);
      made.addEventListener("click", act);
    };
    button("+", "Zoom in", () => this.zoom(0.5));
    button("−", "Zoom out", () => this.zoom(2));
    button("←", "Move left", () => this.pan(-0.25));
    button("→", "Move right", () => this.pan(0.25));
    const { series, x, y } = this.spec.views[0];
    if (series.some((s) => s.kind === "marks")) button("bulk", "Show the bulk alone", () => this.look(this.domain(true)));
    button("all", "Show everything", () => this.look(this.domain(false)));
    const positive = (key) => series.every((s) => s.kind === "marks" || (s[key] || []).every((v) => v > 0));
    const other = this.spec.views[1];
    if (other) this.toggle(bar, `log ${other.x.label}`, "x", false, () => { this.which = 1 - this.which; });
    else if (positive("x")) this.toggle(bar, `log ${x.label}`, "x", x.log, () => { this.view.logX = !this.view.logX; });
    if (y.log || positive("y")) {
      this.toggle(bar, `log ${y.label}`, "y", y.log, () => this.views.forEach((view) => { view.logY = !view.logY; }));
    }
  }

  toggle(bar, text, axis, pressed, act) {
    const made = node("button", { type: "button", "aria-pressed": pressed, "data-toggle": axis }, bar, text);
    made.addEventListener("click", () => {
      made.setAttribute("aria-pressed", made.getAttribute("aria-pressed") !== "true");
      act();
      if (axis === "x") this.view.look = null;
      this.draw();
    });
  }

  listen() {
    this.host.querySelectorAll(".legend button").forEach((key, i) => key.addEventListener("click", () => {
      this.shown[i] = !this.shown[i];
      key.setAttribute("aria-pressed", this.shown[i]);
      this.draw();
    }));
    const svg = this.svg;
    svg.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const all = () => this.look(this.domain(false));
      const act = {
        "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
        ArrowLeft: () => this.pan(-0.1), ArrowRight: () => this.pan(0.1), 0: all, Home: all,
      }[event.key];
      if (act) { act(); event.preventDefault(); }
    });
    svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.from = this.pixel(event); svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => this.hover(this.pixel(event)));
    svg.addEventListener("pointerup", (event) => {
      const start = this.from, end = this.pixel(event);
      this.release();
      if (start === null || start === undefined || Math.abs(end - start) < 6) return;
      this.look([this.invert(Math.min(start, end)), this.invert(Math.max(start, end))]);
    });
    svg.addEventListener("pointercancel", () => this.release());
    svg.addEventListener("pointerleave", () => this.view.cross.setAttribute("visibility", "hidden"));
    svg.addEventListener("dblclick", () => this.look(this.domain(false)));
  }

  release() { this.from = null; this.view.selection.setAttribute("width", 0); }

  // What is looked at -----------------------------------------------------------------------------

  domain(bulk) {
    const { spec, logX } = this.view, all = !this.shown.some(Boolean);
    const wanted = (s, i) => (this.shown[i] || all) && !(bulk && (s.kind === "marks" || s.kind === "filled"));
    let xs = spec.series.filter(wanted).flatMap((s) => s.x.filter((x) => x !== null));
    if (!bulk) xs = xs.concat(spec.lines.map(([, x]) => x));
    spec.series.filter((s) => s.kind === "bars").forEach((s) => {
      const half = s.x.length > 1 ? 0.4 * Math.min(...s.x.slice(1).map((x, i) => x - s.x[i])) : 0.4;
      xs = xs.concat(s.x.flatMap((x) => [x - half, x + half]));
    });
    if (logX) xs = xs.filter((x) => x > 0).map(Math.log10);
    const [a, b] = xs.length ? extent(xs) : [0, 1], room = 0.02 * (b - a) || 0.5 * Math.abs(a) || 0.5;
    return [a - room, b + room];
  }

  look([a, b]) {
    if (b - a > 1e-9 * Math.max(Math.abs(a), Math.abs(b))) { this.view.look = [a, b]; this.draw(); }
  }

  zoom(factor) {
    const [a, b] = this.view.look, center = (a + b) / 2, half = ((b - a) / 2) * factor;
    this.look([center - half, center + half]);
  }

  pan(share) { const [a, b] = this.view.look, d = share * (b - a); this.look([a + d, b + d]); }

  pixel(event) {
    const box = this.svg.getBoundingClientRect();
    return Math.min(Math.max(event.clientX - box.left, MARGIN.left), this.width - MARGIN.right);
  }

  invert(pixel) {
    const [a, b] = this.view.look;
    return a + ((pixel - MARGIN.left) / this.inner) * (b - a);
  }

  // Places ----------------------------------------------------------------------------------------

  draw() {
    this.width = Math.max(this.area.clientWidth, 240);
    this.height = Math.round(Math.min(Math.max(this.width * 0.52, 240), 420));
    this.foot = this.height - MARGIN.bottom;
    this.inner = this.width - MARGIN.left - MARGIN.right;
    set(this.svg, { viewBox: `0 0 ${this.width} ${this.height}`, height: this.height });
    this.views.forEach((view, i) => { view.group.style.display = i === this.which ? "" : "none"; });
    const view = this.view;
    view.look ||= this.domain(false);
    const [a, b] = view.look;
    this.svg.dataset.view = `${a} ${b}`;
    this.u = (x) => (view.logX ? (x > 0 ? Math.log10(x) : -300) : x);
    this.x = (x) => MARGIN.left + ((this.u(x) - a) / (b - a)) * this.inner;
    this.scale();
    this.ticks();
    set(view.clip, { width: this.inner, height: this.foot - MARGIN.top });
    set(view.selection, { y: MARGIN.top, height: this.foot - MARGIN.top });
    set(view.cross, { y1: MARGIN.top, y2: this.foot });
    view.spec.series.forEach((series, i) => {
      view.series[i].style.display = this.shown[i] ? "" : "none";
      if (this.shown[i]) this.move(view.series[i], series, view.rows[i]);
    });
    view.thresholds.forEach((group, i) => {
      const x = this.x(view.spec.lines[i][1]);
      set(group.querySelector("line"), { x1: x, x2: x, y2: this.foot });
      set(group.querySelector("text"), { x: x + 4 });
    });
  }

  // The vertical axis: the picture's own limits, or what is to be seen between the ends of the other.
  scale() {
    const { spec, look: [a, b], logY } = this.view, heights = [];
    spec.series.forEach((series, i) => {
      if (!this.shown[i] || series.kind === "marks") return;
      series.x.forEach((x, k) => {
        const u = this.u(x);
        if (u < a || u > b) return;
        for (const key of ["y", "low", "high"]) if (series[key] && series[key][k] !== null) heights.push(series[key][k]);
      });
    });
    if (!logY && spec.series.some((s, i) => s.kind === "bars" && this.shown[i])) heights.push(0);
    const [low, high] = heights.length ? extent(heights.filter((y) => !logY || y > 0)) : [0, 1];
    if (spec.y.limits && logY === spec.y.log) this.range = logY ? spec.y.limits.map(Math.log10) : spec.y.limits;
    else if (logY) this.range = [Math.log10(Math.max(low / 1.5, 1e-12 * high)), Math.log10(1.8 * high)];
    else {
      const room = 0.05 * (high - low) || 0.1 * Math.abs(high) || 1;
      this.range = [low >= 0 && low < 0.3 * high ? 0 : low - room, high + room];
    }
    const [p, q] = this.range, tall = this.foot - MARGIN.top;
    this.y = (v) => {
      const w = logY ? (v > 0 ? Math.log10(v) : p - 1) : v;
      return MARGIN.top + (1 - Math.min(Math.max((w - p) / (q - p), -0.2), 1.2)) * tall;
    };
  }

  ticks() {
    const { axes, spec, logX, logY, look: [a, b] } = this.view, [p, q] = this.range;
    axes.replaceChildren();
    const places = (low, high, most, log) => (log
      ? decadeTicks(low, high, most).map((u) => [10 ** u, format(10 ** u, 3)])
      : linearTicks(low, high, most).map((v) => [v, format(v, 6)]));
    for (const [value, text] of places(a, b, this.inner / 64, logX)) {
      if (spec.x.whole && !logX && !Number.isInteger(value)) continue;
      const x = this.x(value), over = x + 3.4 * text.length > this.width;
      node("line", { class: "grid", x1: x, x2: x, y1: MARGIN.top, y2: this.foot }, axes);
      // A label at the right end must not be cut off.
      const where = over ? { x: this.width, "text-anchor": "end" } : { x, "text-anchor": "middle" };
      node("text", { class: "tick", y: this.foot + 16, ...where }, axes, text);
    }
    for (const [value, text] of places(p, q, (this.foot - MARGIN.top) / 30, logY)) {
      const y = this.y(value);
      node("line", { class: "grid", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: y, y2: y }, axes);
      node("text", { class: "tick", x: MARGIN.left - 7, y: y + 4, "text-anchor": "end" }, axes, text);
    }
    node("line", { class: "axis", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: this.foot, y2: this.foot }, axes);
    node("text", { class: "label", x: MARGIN.left + this.inner / 2, y: this.height - 8, "text-anchor": "middle" }, axes, spec.x.label);
    const middle = (this.foot + MARGIN.top) / 2;
    node("text", { class: "label", x: 13, y: middle, "text-anchor": "middle", transform: `rotate(-90 13 ${middle})` }, axes, spec.y.label);
  }

  move(group, series, row) {
    const points = (ys) => series.x.map((x, i) => [this.x(x), this.y(ys[i])]);
    const path = (list) => `M${list.map(([x, y]) => `${x.toFixed(2)},${y.toFixed(2)}`).join("L")}`;
    const stairs = (list) => list.flatMap((p, i) => (i ? [[p[0], list[i - 1][1]], p] : [p]));
    if (series.kind === "marks") {
      const top = this.foot - 22 - 11 * row;
      group.querySelectorAll("g.mark").forEach((mark, i) => {
        const x = this.x(series.x[i]);
        set(mark.firstChild, { x1: x, x2: x, y1: top, y2: this.foot });
        set(mark.lastChild, { cx: x, cy: top });
      });
      return;
    }
    let list = points(series.y);
    const dots = group.querySelectorAll("circle.dot");
    dots.forEach((dot, i) => set(dot, { cx: list[i][0], cy: list[i][1] }));
    group.querySelectorAll("line.whisker").forEach((line, i) => set(line, {
      x1: list[i][0], x2: list[i][0], y1: this.y(series.low[i]), y2: this.y(series.high[i]) }));
    if (series.kind === "bars") {
      const half = list.length > 1 ? 0.4 * Math.min(...list.slice(1).map(([x], i) => x - list[i][0])) : 20;
      group.querySelectorAll("rect").forEach((bar, i) => set(bar, {
        x: list[i][0] - half, y: list[i][1], width: 2 * half, height: Math.max(this.foot - list[i][1], 0) }));
      return;
    }
    const stepped = series.kind === "steps" || series.kind === "filled";
    if (stepped) list = stairs(list);
    const area = group.querySelector("path.area"), band = group.querySelector("path.band"), line = group.querySelector("path.line");
    if (area) area.setAttribute("d", `${path([...list, [list[list.length - 1][0], this.foot], [list[0][0], this.foot]])}Z`);
    if (line) line.setAttribute("d", path(list));
    if (band) {
      const [upper, lower] = ["high", "low"].map((key) => (stepped ? stairs(points(series[key])) : points(series[key])));
      band.setAttribute("d", `${path([...upper, ...lower.reverse()])}Z`);
    }
  }

  // Numbers under the pointer ---------------------------------------------------------------------

  hover(pixel) {
    const { spec, cross, selection, logX } = this.view;
    set(cross, { x1: pixel, x2: pixel, visibility: "visible" });
    if (this.from !== null && this.from !== undefined) {
      set(selection, { x: Math.min(this.from, pixel), width: Math.abs(pixel - this.from) });
    }
    const u = this.invert(pixel), parts = [];
    spec.series.forEach((series, i) => {
      if (!this.shown[i]) return;
      const reach = series.kind === "marks" ? 4 : 24, near = this.nearest(series.x, pixel);
      if (near < 0 || Math.abs(this.x(series.x[near]) - pixel) > reach) return;
      if (series.kind === "marks") { parts.push(`${series.name} ${format(series.x[near], 5)} ± ${format(series.y[near], 2)}`); return; }
      const band = series.low ? ` (${format(Math.max(series.low[near], 0), 2)} … ${format(series.high[near], 2)})` : "";
      parts.push(`${series.name} ${format(series.y[near], 3)}${band}`);
    });
    this.readout.textContent = `${spec.x.label} = ${format(logX ? 10 ** u : u, 4)}${parts.length ? ": " : ""}${parts.join("; ")}`;
  }

  nearest(xs, pixel) {
    let best = -1, least = Infinity;
    xs.forEach((x, i) => {
      const far = Math.abs(this.x(x) - pixel);
      if (far < least) { best = i; least = far; }
    });
    return best;
  }
}

// A heat map is an image, read with pointer or arrows.
class HeatMap {
  constructor(host, spec) {
    this.spec = spec; this.cell = [0, 0];
    this.image = host.querySelector(".heat img");
    this.readout = node("output", { class: "readout", "aria-live": "polite" }, host);
    this.image.addEventListener("pointermove", (event) => {
      const box = this.image.getBoundingClientRect(), { values } = spec;
      this.read(Math.floor(((event.clientY - box.top) / box.height) * values.length),
        Math.floor(((event.clientX - box.left) / box.width) * values[0].length));
    });
    this.image.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      this.read(this.cell[0] + step[0], this.cell[1] + step[1]);
    });
  }

  read(i, j) {
    const row = this.spec.values[i];
    if (!row || row[j] === undefined) return;
    this.cell = [i, j];
    this.readout.textContent = `${this.spec.y} ${i + 1}, ${this.spec.x} ${j + 1}: ${format(row[j], 3)}`;
  }
}
