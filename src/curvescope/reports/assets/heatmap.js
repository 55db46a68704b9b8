// Heat maps: a matrix of numbers from 0 to `top`, drawn on a canvas, read with pointer or arrows.
"use strict";

class HeatMap {
  // Five points of cividis, which rises evenly in lightness and survives colour blindness.
  static STOPS = [[0, 34, 78], [62, 80, 107], [124, 123, 120], [187, 173, 108], [254, 232, 56]];

  constructor(host, spec) {
    this.host = host; this.spec = spec; this.cell = [0, 0];
    const frame = Curves.html("div", { class: "heat" }, host);
    Curves.html("span", { class: "heat-y" }, frame, spec.y);
    this.ticks("rows", "top", spec.values.length, frame);
    this.canvas = Curves.html("canvas", {
      tabindex: 0, role: "img",
      "aria-label": `${spec.title}: ${spec.values.length} rows, ${spec.values[0].length} columns. Arrows read the entries.`,
    }, frame);
    this.ticks("columns", "left", spec.values[0].length, frame);
    Curves.html("span", { class: "heat-x" }, frame, spec.x);
    const scale = Curves.html("div", { class: "scale", "aria-hidden": "true" }, host);
    Curves.html("span", {}, scale, "0");
    Curves.html("span", { class: "ramp", style: `background: linear-gradient(90deg, ${HeatMap.STOPS.map((c) => `rgb(${c})`)})` }, scale);
    Curves.html("span", {}, scale, Curves.format(spec.top, 3));
    this.readout = Curves.html("output", { class: "readout", "aria-live": "polite" }, host);
    this.draw();
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  // The first, unless it stands too near, and then round numbers, at the middle of their cells.
  ticks(name, side, count, frame) {
    const axis = Curves.html("div", { class: name, "aria-hidden": "true" }, frame);
    const step = [1, 2, 5, 10, 20, 50, 100].find((s) => count / s <= 8) || 200;
    for (let k = 0; k <= count; k += step) {
      const index = Math.max(k, 1);
      if (index > count || (k === 0 && step < 5)) continue;
      Curves.html("span", { style: `${side}: ${(100 * (index - 0.5)) / count}%` }, axis, String(index));
    }
  }

  static colour(share) {
    const t = Math.min(Math.max(share, 0), 1) * (HeatMap.STOPS.length - 1);
    const i = Math.min(Math.floor(t), HeatMap.STOPS.length - 2);
    return HeatMap.STOPS[i].map((low, k) => Math.round(low + (t - i) * (HeatMap.STOPS[i + 1][k] - low)));
  }

  draw() {
    const { values, top } = this.spec, rows = values.length, columns = values[0].length;
    this.canvas.width = columns; this.canvas.height = rows;
    this.canvas.style.aspectRatio = `${columns} / ${rows}`;
    const context = this.canvas.getContext("2d"), image = context.createImageData(columns, rows);
    values.forEach((row, i) => row.forEach((value, j) => {
      image.data.set([...HeatMap.colour(value / top), 255], 4 * (i * columns + j));
    }));
    context.putImageData(image, 0, 0);
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    this.read(
      Math.floor(((event.clientY - box.top) / box.height) * this.spec.values.length),
      Math.floor(((event.clientX - box.left) / box.width) * this.spec.values[0].length));
  }

  key(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    this.read(this.cell[0] + step[0], this.cell[1] + step[1]);
  }

  read(i, j) {
    const row = this.spec.values[i];
    if (!row || row[j] === undefined) return;
    this.cell = [i, j];
    this.readout.textContent = `${this.spec.y} ${i + 1}, ${this.spec.x} ${j + 1}: ${Curves.format(row[j], 3)}`;
  }
}
