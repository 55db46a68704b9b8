// What charts are made of: nodes of the page, numbers as text, ticks, and curves in a view.
//
// A density arrives as the nodes and weights of its quadrature, one row for each probe, and is
// evaluated on the points that are visible: zooming shows more, not just larger. The spread between
// the probes gives the band of two standard errors. 
"use strict";

const Curves = (() => {
  const NAMESPACE = "http://www.w3.org/2000/svg";
  const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

  // Small tools -------------------------------------------------------------------------------

  function svg(tag, attributes, parent) {
    const node = document.createElementNS(NAMESPACE, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (parent) parent.append(node);
    return node;
  }

  function html(tag, attributes, parent, text) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  }

  const superscript = (n) => [...String(n)].map((c) => SUPERSCRIPTS[c]).join("");

  function format(value, digits = 4) {
    if (value === 0) return "0";
    const power = Math.floor(Math.log10(Math.abs(value)) + 1e-9);
    if (power >= -3 && power < 5) return String(Number(value.toPrecision(digits))).replace("-", "−");
    const mantissa = Number((value / 10 ** power).toPrecision(digits));
    const front = mantissa === 1 ? "" : `${String(mantissa).replace("-", "−")}·`;
    return `${front}10${superscript(power)}`;
  }

  function ticks(low, high, count) {
    const raw = (high - low) / Math.max(count, 1);
    const unit = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((k) => k * unit).find((s) => s >= raw * 0.999);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(k * step);
    return { step, values: found };
  }

  // Positions on an axis of decimal logarithms: whole decades, or 1, 2, 5 (or 1 … 9) of each.
  function decades(low, high, count) {
    if (high - low > 2.5) return ticks(low, high, count).values.filter(Number.isInteger);
    const within = high - low > 0.8 ? [1, 2, 5] : [1, 2, 3, 4, 5, 6, 7, 8, 9];
    const found = [];
    for (let k = Math.floor(low); k <= high; k++) {
      for (const m of within) {
        const u = k + Math.log10(m);
        if (u >= low && u <= high) found.push(u);
      }
    }
    return found.length > 1 ? found : ticks(low, high, count).values;
  }

  const extent = (values) => values.reduce(
    ([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);

  // Series: what they cover, and their curve in a view ------------------------------------------

  const place = (spec, log) => (x) => (log ? Math.log10(Math.abs(x) + (spec.eps || 0)) : x);

  function coverage(series, spec, log, bulk) {
    const at = place(spec, log);
    if (series.kind === "density") {
      const width = 5 * (log ? series.log_sigma : series.sigma);
      const [a, b] = extent(series.nodes.flat().map(at));
      const marks = bulk ? [] : series.outliers.map((o) => at(o[0]));
      return extent([a - width, b + width, ...marks]);
    }
    const values = series.kind === "histogram" ? series.values : series.x;
    // Zeros of an exact spectrum stand at the left end of a logarithmic axis.
    return bulk ? [Infinity, -Infinity] : extent(values.map(at));
  }

  function evaluate(series, spec, view, pixels, log) {
    if (series.kind === "density") return density(series, spec, view, pixels, log);
    if (series.kind === "histogram") return histogram(series, spec, view, pixels, log);
    const at = place(spec, log);
    return { x: series.x.map(at), y: series.y, low: series.low, high: series.high };
  }

  function density(series, spec, [a, b], pixels, log) {
    const at = place(spec, log), count = Math.min(Math.max(Math.round(pixels), 50), 900);
    const cell = (b - a) / (count - 1);
    // A bump narrower than a pixel would fall between the points: it is drawn as wide as one.
    const sigma = Math.max(log ? series.log_sigma : series.sigma, cell * 0.75);
    const norm = 1 / (sigma * Math.sqrt(2 * Math.PI)), reach = 7 * sigma;
    const probes = series.nodes.length;
    const sum = new Float64Array(count), squares = new Float64Array(count);
    for (let l = 0; l < probes; l++) {
      const own = new Float64Array(count);
      series.nodes[l].forEach((node, m) => {
        const centre = at(node), mass = series.weights[l][m] * norm;
        if (mass === 0) return;
        const first = Math.max(0, Math.ceil((centre - reach - a) / cell));
        const last = Math.min(count - 1, Math.floor((centre + reach - a) / cell));
        for (let i = first; i <= last; i++) own[i] += mass * Math.exp(-0.5 * ((a + i * cell - centre) / sigma) ** 2);
      });
      for (let i = 0; i < count; i++) { sum[i] += own[i]; squares[i] += own[i] ** 2; }
    }
    const x = [], y = [], low = [], high = [];
    for (let i = 0; i < count; i++) {
      const mean = sum[i] / probes;
      const spread = probes > 1 ? Math.sqrt(Math.max(squares[i] / probes - mean ** 2, 0) / (probes - 1)) : 0;
      x.push(a + i * cell); y.push(mean); low.push(Math.max(mean - 2 * spread, 0)); high.push(mean + 2 * spread);
    }
    return { x, y, low: probes > 1 ? low : null, high, one: norm / series.dimension };
  }

  function histogram(series, spec, [a, b], pixels, log) {
    const at = place(spec, log), bins = Math.min(Math.max(Math.round(pixels / 5), 20), 200);
    const width = (b - a) / bins, counts = new Float64Array(bins);
    const add = (u, count) => { if (u >= a && u < b) counts[Math.floor((u - a) / width)] += count; };
    for (const value of series.values) add(at(value), 1);
    if (series.zeros) add(at(0), series.zeros);
    const x = [], y = [];
    counts.forEach((count, i) => {
      const height = count / (series.dimension * width);
      x.push(a + i * width, a + (i + 1) * width); y.push(height, height);
    });
    return { x, y, low: null, one: 1 / (series.dimension * width) };
  }

  function nearest(xs, u) {
    let best = -1;
    xs.forEach((x, i) => { if (best < 0 || Math.abs(x - u) < Math.abs(xs[best] - u)) best = i; });
    return best;
  }

  return { svg, html, format, ticks, decades, place, coverage, evaluate, nearest };
})();
