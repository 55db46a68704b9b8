// Charts drawn as SVG from numbers in the page: zoom, log axes, legend; no library, no request.
// Colours are CSS variables of the page, so that a change of theme needs no new drawing.
"use strict";

const MARGIN = { left: 62, right: 14, top: 12, bottom: 44 };

class Chart {
  constructor(host, spec) {
    this.host = host; this.spec = spec;
    this.logX = Boolean(spec.x.log); this.logY = Boolean(spec.y.log);
    this.shown = spec.series.map((s) => !s.hidden);
    this.build();
    this.view = this.domain(false);
    new ResizeObserver(() => this.draw()).observe(this.area);
    this.draw();
  }

  build() {
    const bar = Curves.html("div", { class: "tools", role: "toolbar", "aria-label": `Tools of: ${this.spec.title}` }, this.host);
    const button = (text, label, act) => {
      const node = Curves.html("button", { type: "button", title: label, "aria-label": label }, bar, text);
      node.addEventListener("click", act);
      return node;
    };
    button("+", "Zoom in", () => this.zoom(0.5));
    button("−", "Zoom out", () => this.zoom(2));
    button("←", "Move left", () => this.pan(-0.25));
    button("→", "Move right", () => this.pan(0.25));
    if (this.spec.bulk) button("bulk", "Show the bulk alone", () => this.look(this.domain(true)));
    button("all", "Show everything", () => this.look(this.domain(false)));
    if (this.spec.x.toggle) this.toggle(bar, this.spec.x.toggle, "logX", "Logarithmic horizontal axis");
    if (this.spec.y.toggle) this.toggle(bar, this.spec.y.toggle, "logY", "Logarithmic vertical axis");
    this.area = Curves.html("div", { class: "plot" }, this.host);
    this.canvas = Curves.svg("svg", {
      tabindex: 0, role: "group", "aria-roledescription": "chart",
      "aria-label": `${this.spec.title}. Plus and minus zoom, arrows move, 0 shows everything.`,
    }, this.area);
    this.legend();
    this.readout = Curves.html("output", { class: "readout", "aria-live": "polite" }, this.host, this.spec.hint || "");
    this.listen();
  }

  toggle(bar, text, field, label) {
    const node = Curves.html("button", { type: "button", "aria-pressed": this[field], title: label, "data-toggle": field }, bar, text);
    node.addEventListener("click", () => {
      this[field] = !this[field];
      node.setAttribute("aria-pressed", this[field]);
      if (field === "logX") this.view = this.domain(false);
      this.draw();
    });
  }

  legend() {
    const list = Curves.html("div", { class: "legend", role: "group", "aria-label": "Legend: choose what is shown" }, this.host);
    this.spec.series.forEach((series, i) => {
      const key = Curves.html("button", { type: "button", "aria-pressed": this.shown[i], "data-series": series.name }, list);
      this.swatch(key, series);
      Curves.html("span", {}, key, series.name);
      key.addEventListener("click", () => {
        this.shown[i] = !this.shown[i];
        key.setAttribute("aria-pressed", this.shown[i]);
        this.draw();
      });
    });
  }

  swatch(key, series) {
    const kind = { histogram: "area", points: "dots" }[series.kind], style = `--c: var(--${series.colour})`;
    if (kind) { Curves.html("span", { class: `swatch ${kind}`, style, "aria-hidden": "true" }, key); return; }
    const sample = Curves.svg("svg", { class: "swatch", style, "aria-hidden": "true" }, key);
    const line = Curves.svg("line", { class: "line", x1: 0, x2: "100%", y1: "50%", y2: "50%" }, sample);
    this.stroke(line, series, 2.4);
  }

  // Curves that lie over each other are told apart by their dashes and widths, not by colour alone.
  stroke(line, series, width) {
    if (series.dash) line.setAttribute("stroke-dasharray", series.dash);
    line.style.strokeWidth = series.width || width;
  }

  listen() {
    const c = this.canvas;
    c.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const act = {
        "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
        ArrowLeft: () => this.pan(-0.1), ArrowRight: () => this.pan(0.1),
        0: () => this.look(this.domain(false)), Home: () => this.look(this.domain(false)),
      }[event.key];
      if (act) { act(); event.preventDefault(); }
    });
    c.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.from = this.pixel(event); c.setPointerCapture(event.pointerId);
    });
    c.addEventListener("pointermove", (event) => this.hover(this.pixel(event)));
    c.addEventListener("pointerup", (event) => {
      const start = this.from, end = this.pixel(event);
      this.from = null; this.selection.setAttribute("width", 0);
      if (start === null || start === undefined || Math.abs(end - start) < 6) return;
      this.look([this.invert(Math.min(start, end)), this.invert(Math.max(start, end))]);
    });
    c.addEventListener("pointercancel", () => { this.from = null; this.selection.setAttribute("width", 0); });
    c.addEventListener("pointerleave", () => this.cross.setAttribute("visibility", "hidden"));
    c.addEventListener("dblclick", () => this.look(this.domain(false)));
  }

  // Views --------------------------------------------------------------------------------------

  domain(bulk) {
    const visible = this.spec.series.filter((s, i) => this.shown[i]);
    let ends = visible.map((s) => Curves.coverage(s, this.spec, this.logX, bulk)).filter(([a]) => a < Infinity);
    if (!ends.length) ends = this.spec.series.map((s) => Curves.coverage(s, this.spec, this.logX, false));
    const [a, b] = [Math.min(...ends.map((e) => e[0])), Math.max(...ends.map((e) => e[1]))];
    const pad = 0.02 * (b - a) || 0.5 * Math.abs(a) || 0.5;
    return [a - pad, b + pad];
  }

  look([a, b]) {
    const scale = Math.max(Math.abs(a), Math.abs(b));
    if (b - a > 1e-9 * scale) { this.view = [a, b]; this.draw(); }
  }

  zoom(factor) {
    const [a, b] = this.view, centre = (a + b) / 2, half = ((b - a) / 2) * factor;
    this.look([centre - half, centre + half]);
  }

  pan(share) { const [a, b] = this.view, d = share * (b - a); this.look([a + d, b + d]); }

  pixel(event) {
    const box = this.canvas.getBoundingClientRect();
    return Math.min(Math.max(event.clientX - box.left, MARGIN.left), this.width - MARGIN.right);
  }

  invert(pixel) {
    const [a, b] = this.view;
    return a + ((pixel - MARGIN.left) / (this.width - MARGIN.left - MARGIN.right)) * (b - a);
  }

  // Drawing ------------------------------------------------------------------------------------

  draw() {
    this.width = Math.max(this.area.clientWidth, 240);
    this.height = Math.round(Math.min(Math.max(this.width * 0.52, 240), 420));
    const c = this.canvas, [a, b] = this.view;
    c.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    c.setAttribute("height", this.height);
    c.dataset.view = `${a} ${b}`;
    c.replaceChildren();
    this.inner = this.width - MARGIN.left - MARGIN.right;
    this.x = (u) => MARGIN.left + ((u - a) / (b - a)) * this.inner;
    this.curves = this.spec.series.map((s, i) => (this.shown[i] ? Curves.evaluate(s, this.spec, this.view, this.inner, this.logX) : null));
    this.scaleY();
    this.axes();
    const clip = `clip-${this.host.id}`;
    Curves.svg("rect", { x: MARGIN.left, y: MARGIN.top, width: this.inner, height: this.height - MARGIN.top - MARGIN.bottom }, Curves.svg("clipPath", { id: clip }, Curves.svg("defs", {}, c)));
    const body = Curves.svg("g", { "clip-path": `url(#${clip})` }, c);
    // The first series lies on top.
    for (let i = this.curves.length - 1; i >= 0; i--) {
      if (this.curves[i]) this.drawSeries(body, this.spec.series[i], this.curves[i]);
    }
    this.cross = Curves.svg("line", { class: "cross", y1: MARGIN.top, y2: this.height - MARGIN.bottom, visibility: "hidden" }, c);
    this.selection = Curves.svg("rect", { class: "selection", y: MARGIN.top, height: this.height - MARGIN.top - MARGIN.bottom, width: 0 }, c);
  }

  scaleY() {
    const [a, b] = this.view;
    let low = Infinity, peak = -Infinity, one = Infinity;
    for (const curve of this.curves) {
      if (!curve) continue;
      curve.x.forEach((x, i) => {
        if (x < a || x > b) return;
        peak = Math.max(peak, curve.low ? curve.high[i] : curve.y[i]);
        if (!this.logY || curve.y[i] > 0) low = Math.min(low, curve.y[i]);
      });
      if (curve.one) one = Math.min(one, curve.one);
    }
    if (!(peak > -Infinity)) { low = 0; peak = 1; }
    if (this.logY) {
      if (!(peak > 0)) peak = 1;
      // Low enough to see a single eigenvalue, where the series say how high one stands.
      const floor = one < Infinity ? Math.min(Math.max(0.2 * one, 1e-9 * peak), 1e-2 * peak) : Math.max(low / 1.5, 1e-12 * peak);
      this.range = [Math.log10(Math.max(floor, 1e-300)), Math.log10(peak * 1.8)];
    } else {
      if (this.spec.y.zero !== false) low = Math.min(low, 0);
      const pad = 0.05 * (peak - low) || 0.1 * Math.abs(peak) || 1;
      this.range = [low < 0 || this.spec.y.zero === false ? low - pad : 0, peak + pad];
    }
    const [p, q] = this.range, room = this.height - MARGIN.top - MARGIN.bottom;
    this.y = (v) => {
      const w = this.logY ? (v > 0 ? Math.log10(v) : p - 1) : v;
      return MARGIN.top + (1 - Math.min(Math.max((w - p) / (q - p), -0.2), 1.2)) * room;
    };
  }

  axes() {
    const c = this.canvas, [a, b] = this.view, [p, q] = this.range, foot = this.height - MARGIN.bottom;
    for (const [v, text] of this.labels(a, b, this.inner / 64, this.logX)) {
      const x = this.x(v);
      Curves.svg("line", { class: "grid", x1: x, x2: x, y1: MARGIN.top, y2: foot }, c);
      // A label at the right end must not be cut off.
      const over = x + 3.4 * text.length > this.width;
      const where = over ? { x: this.width, "text-anchor": "end" } : { x, "text-anchor": "middle" };
      Curves.svg("text", { class: "tick", y: foot + 16, ...where }, c).textContent = text;
    }
    for (const [v, text] of this.labels(p, q, (foot - MARGIN.top) / 30, this.logY)) {
      const y = this.y(this.logY ? 10 ** v : v);
      Curves.svg("line", { class: "grid", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: y, y2: y }, c);
      Curves.svg("text", { class: "tick", x: MARGIN.left - 7, y: y + 4, "text-anchor": "end" }, c).textContent = text;
    }
    Curves.svg("line", { class: "axis", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: foot, y2: foot }, c);
    const middle = MARGIN.left + this.inner / 2;
    Curves.svg("text", { class: "label", x: middle, y: this.height - 8, "text-anchor": "middle" }, c).textContent = this.logX ? this.spec.x.log_label || this.spec.x.label : this.spec.x.label;
    const side = Curves.svg("text", { class: "label", x: 13, y: (foot + MARGIN.top) / 2, "text-anchor": "middle" }, c);
    side.setAttribute("transform", `rotate(-90 13 ${(foot + MARGIN.top) / 2})`);
    side.textContent = this.logX && this.spec.y.log_label ? this.spec.y.log_label : this.spec.y.label;
  }

  labels(low, high, count, log) {
    if (log) return Curves.decades(low, high, count).map((v) => [v, Curves.format(10 ** v, 3)]);
    const { step, values } = Curves.ticks(low, high, count);
    return values.map((v) => [v, Curves.format(Math.abs(v) < 1e-9 * step ? 0 : v, 6)]);
  }

  path(x, y, close) {
    const points = x.map((u, i) => `${this.x(u).toFixed(2)},${this.y(y[i]).toFixed(2)}`);
    return `M${points.join("L")}${close || ""}`;
  }

  drawSeries(body, series, curve) {
    const group = Curves.svg("g", { class: `series ${series.kind}`, style: `--c: var(--${series.colour})`, "data-name": series.name }, body);
    const foot = this.height - MARGIN.bottom;
    if (series.kind === "histogram") {
      const last = curve.x.length - 1;
      const close = `L${this.x(curve.x[last]).toFixed(2)},${foot}L${this.x(curve.x[0]).toFixed(2)},${foot}Z`;
      Curves.svg("path", { class: "area", d: this.path(curve.x, curve.y, close) }, group);
      return;
    }
    if (curve.low) {
      const back = [...curve.x].reverse(), low = [...curve.low].reverse();
      Curves.svg("path", { class: "band", d: `${this.path(curve.x, curve.high)}L${this.path(back, low).slice(1)}Z` }, group);
    }
    if (series.kind !== "points") this.stroke(Curves.svg("path", { class: "line", d: this.path(curve.x, curve.y) }, group), series, 1.8);
    if (series.kind === "points" || series.marks) {
      curve.x.forEach((u, i) => Curves.svg("circle", { class: "dot", cx: this.x(u), cy: this.y(curve.y[i]), r: 2.6 }, group));
    }
    const at = Curves.place(this.spec, this.logX), top = foot - 22 - 11 * (series.row || 0);
    for (const [value] of series.outliers || []) {
      const x = this.x(at(value));
      Curves.svg("line", { class: "outlier", x1: x, x2: x, y1: top, y2: foot }, group);
      Curves.svg("circle", { class: "outlier", cx: x, cy: top, r: 3 }, group);
    }
  }

  hover(pixel) {
    this.cross.setAttribute("x1", pixel); this.cross.setAttribute("x2", pixel);
    this.cross.setAttribute("visibility", "visible");
    if (this.from !== null && this.from !== undefined) {
      this.selection.setAttribute("x", Math.min(this.from, pixel));
      this.selection.setAttribute("width", Math.abs(pixel - this.from));
    }
    const u = this.invert(pixel), parts = [];
    const value = this.logX ? 10 ** u : u;
    this.spec.series.forEach((series, i) => {
      const curve = this.curves[i];
      if (!curve) return;
      const near = Curves.nearest(curve.x, u), mark = this.outlierAt(series, pixel);
      if (mark) { parts.push(`${series.name} outlier ${Curves.format(mark[0], 5)} ± ${Curves.format(mark[1], 2)}`); return; }
      if (near < 0 || Math.abs(this.x(curve.x[near]) - pixel) > 24) return;
      const spread = curve.low ? ` ± ${Curves.format((curve.high[near] - curve.y[near]) / 2, 2)}` : "";
      parts.push(`${series.name} ${Curves.format(curve.y[near], 3)}${spread}`);
    });
    this.readout.textContent = `${this.spec.x.name || "x"} = ${Curves.format(value, 4)}${parts.length ? ": " : ""}${parts.join("; ")}`;
  }

  outlierAt(series, pixel) {
    const at = Curves.place(this.spec, this.logX);
    return (series.outliers || []).find((o) => Math.abs(this.x(at(o[0])) - pixel) < 4);
  }
}
