// The list of runs: a filter, and a button that compares what is picked.
"use strict";

(() => {
  const filter = document.getElementById("filter");
  if (!filter) return;
  const rows = [...document.querySelectorAll("tr[data-words]")];
  const picks = [...document.querySelectorAll('input[name="run"]')];
  const compare = document.getElementById("compare"), count = document.getElementById("count");

  function update() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !words.every((word) => row.dataset.words.includes(word));
    const picked = picks.filter((box) => box.checked).length;
    compare.disabled = picked < 2;
    const shown = rows.filter((row) => !row.hidden).length;
    count.textContent = `${shown} shown, ${picked} picked${picked < 2 ? "; pick two or more to compare" : ""}`;
  }

  // While runs are worked on, the page is loaded again: not while somebody types or has picked.
  const form = document.getElementById("runs");
  filter.value = decodeURIComponent(location.hash.slice(1));
  filter.addEventListener("input", () => {
    history.replaceState(null, "", "#" + encodeURIComponent(filter.value));
    update();
  });
  if (form.dataset.live) setInterval(() => {
    const busy = document.activeElement === filter || picks.some((box) => box.checked);
    if (!busy && !document.hidden) location.reload();
  }, 1000 * form.dataset.live);
  filter.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
  picks.forEach((box) => box.addEventListener("change", update));
  update();
})();
