// Puts the charts into the page and remembers the chosen theme.
"use strict";

(() => {
  const button = document.getElementById("theme");
  const recall = () => { try { return localStorage.getItem("curvescope-theme"); } catch { return null; } };
  const show = (theme) => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    button.textContent = { light: "light", dark: "dark" }[theme] || "auto";
    button.setAttribute("aria-label", `Colors: ${button.textContent}; press to change`);
  };
  show(recall());
  button.addEventListener("click", () => {
    const next = { auto: "light", light: "dark", dark: null }[button.textContent];
    try {
      if (next) localStorage.setItem("curvescope-theme", next);
      else localStorage.removeItem("curvescope-theme");
    } catch { /* a page from a file may have no storage */ }
    show(next);
  });

  const source = document.getElementById("charts");
  const specs = source ? JSON.parse(source.textContent) : {};
  for (const host of document.querySelectorAll("[data-chart]")) {
    const spec = specs[host.dataset.chart];
    if (spec) host.drawn = spec.kind === "heat" ? new HeatMap(host, spec) : new Chart(host, spec);
    const remark = host.querySelector(".remark");
    if (remark) host.append(remark);
  }
})();
