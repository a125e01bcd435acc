"use strict";
// What a page waits for, whether the server is there, and keys. Without it everything still works.
(() => {
  const byId = (id) => document.getElementById(id);
  const busy = byId("busy"), lost = byId("lost");

  // A click on a link of this site, or a form that is sent: say that work goes on.
  const working = (on) => { busy.hidden = !on; };
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href]");
    const plain = !event.defaultPrevented && event.button === 0 && !(event.ctrlKey || event.metaKey || event.shiftKey);
    if (link && plain && link.origin === location.origin && !link.hasAttribute("download") && link.getAttribute("href")[0] !== "#") working(true);
  });
  document.addEventListener("submit", () => working(true));
  window.addEventListener("pageshow", () => working(false));

  // Whether the server is there.
  const ask = async (path) => {
    try {
      const answer = await fetch(path, { cache: "no-store" });
      lost.hidden = true;
      return answer;
    } catch {
      lost.hidden = false;
      working(false);
      return null;
    }
  };
  const look = () => { if (!document.hidden) ask("/alive"); };
  setInterval(look, 5000);
  document.addEventListener("visibilitychange", look);

  // A page that waits.
  const id = document.body.dataset.waiting;
  const wait = async () => {
    const answer = await ask("/waiting/" + encodeURIComponent(id));
    if (answer && answer.ok) {
      const found = await answer.json();
      if (found.done) { location.reload(); return; }
      const bar = byId("bar");
      if (found.total) { bar.max = found.total; bar.value = found.part; }
      byId("how-far").textContent = found.words;
    } else if (answer && answer.status === 404) { location.reload(); return; }
    setTimeout(wait, 500);
  };
  if (id) setTimeout(wait, 300);

  // The map: arrow keys go from cell to cell.
  for (const table of document.querySelectorAll(".fm-grid")) {
    table.addEventListener("keydown", (event) => {
      const cell = event.target.closest("td"), [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] || [];
      if (!cell || down === undefined) return;
      const row = table.tBodies[0].rows[cell.parentNode.sectionRowIndex + down];
      const next = row && row.cells[cell.cellIndex + right];
      const link = next && next.querySelector("a");
      if (link) { event.preventDefault(); link.focus(); }
    });
  }

  // Keys: "/" goes to the first field, "[" and "]" to the previous and the next of what is shown.
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    const field = event.key === "/" ? document.querySelector("main input:not([type=hidden]), main textarea") : null;
    const link = { "[": document.querySelector("a[rel=prev]"), "]": document.querySelector("a[rel=next]") }[event.key];
    if (field) { event.preventDefault(); field.focus(); field.select(); }
    if (link) link.click();
  });
})();
