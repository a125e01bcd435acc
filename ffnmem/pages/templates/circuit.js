"use strict";
(() => {
  const get = id => document.getElementById(id);
  const { at, pruned, inputs, levels, edges } = JSON.parse(get("data").textContent);
  const graph = get("graph"), panels = get("panels"), near = get("near"), settings = get("settings");
  const nodes = [...graph.querySelectorAll("a.node")];
  const rows = nodes.map((_, i) => get(`r${i}`));
  const [SOURCE, TARGET, INPUT, WEIGHT] = [0, 1, 2, 3];
  const LISTED = 6, LINED = 40, FIRST = 200, EXAMPLES = 3;
  const heavier = (a, b) => Math.abs(b[WEIGHT]) - Math.abs(a[WEIGHT]);
  const shown = { carried: edges.filter(edge => edge[SOURCE] !== pruned) }; // they come in this order
  shown.weight = [...shown.carried].sort(heavier);

  // ---- edges: one path for each sign and width, however many there are ----
  const largestOf = some => some.reduce((most, edge) => Math.max(most, Math.abs(edge[WEIGHT])), 0) || 1;
  const sign = edge => edge[WEIGHT] >= 0 ? "plus" : "minus";
  const level = (edge, largest) => Math.max(1, Math.ceil(levels * Math.sqrt(Math.abs(edge[WEIGHT]) / largest)));

  function curve(edge) {
    const [[x, y], [u, v]] = [at[edge[SOURCE]], at[edge[TARGET]]], middle = (y + v) / 2;
    return `M${x} ${y}C${x} ${middle} ${u} ${middle} ${u} ${v}`;
  }

  function drawInto(group, some) {
    const largest = largestOf(some), paths = {};
    for (const edge of some) (paths[`edge ${sign(edge)} w${level(edge, largest)}`] ??= []).push(curve(edge));
    group.replaceChildren(...Object.entries(paths).map(([name, parts]) => {
      const path = document.createElementNS(graph.namespaceURI, "path");
      path.setAttribute("class", name);
      path.setAttribute("d", parts.join(""));
      return path;
    }));
  }

  // The slider goes by factors: from none over a few to all.
  const slider = get("count"), all = shown.carried.length;
  const countOf = value => Math.round((all + 1) ** (value / slider.max)) - 1;

  function drawEdges() {
    const count = countOf(slider.value);
    drawInto(get("edges"), shown[settings.elements.by.value].slice(0, count));
    get("counted").textContent = `${count.toLocaleString("en")} of ${all.toLocaleString("en")}`;
  }

  // ---- panels ----
  let here = null; // what is pointed at, or has the focus
  const pins = new Set();
  const nameOf = row => row.querySelector("th"), placeOf = row => nameOf(row).nextElementSibling;
  const copies = parts => [...parts].map(part => part.cloneNode(true));

  function make(tag, name, ...parts) {
    const made = document.createElement(tag);
    if (name) made.className = name;
    made.append(...parts);
    return made;
  }

  function fixed(value) {
    const text = Math.abs(value).toFixed(3);
    return Number(text) === 0 ? text : (value < 0 ? "\u2212" : "+") + text;
  }

  /** A small table of edges, those of most weight first, and what the others come to. */
  function wire(caption, some, end) {
    const body = make("tbody", ""), table = make("table", "wire", make("caption", "", caption), body);
    const line = (name, what, weight) => body.append(make("tr", name, make("td", "", what), make("td", "r", fixed(weight))));
    for (const edge of some.slice(0, LISTED)) {
      const i = edge[end], row = rows[i], button = make("button", "go", row.dataset.name, " ", ...copies(placeOf(row).childNodes));
      button.type = "button";
      button.addEventListener("click", () => go(i));
      line("", button, edge[WEIGHT]);
    }
    const rest = some.slice(LISTED);
    if (rest.length) line("rest", `${rest.length.toLocaleString("en")} more, together`, rest.reduce((sum, edge) => sum + edge[WEIGHT], 0));
    return table;
  }

  /** One table for each input, since weights into different ones have no sum. */
  function wires(caption, some, end) {
    const used = inputs.map((name, i) => [name, some.filter(edge => edge[INPUT] === i)]).filter(([, found]) => found.length);
    return used.map(([name, found]) => wire(used.length > 1 ? `${caption}, ${name}` : caption, found.sort(heavier), end));
  }

  function panel(i) {
    const made = get("panel").content.firstElementChild.cloneNode(true), row = rows[i], pin = made.querySelector(".pin");
    made.querySelector("h3").append(...copies(nameOf(row).childNodes), " ", ...copies(placeOf(row).childNodes));
    pin.textContent = pins.has(i) ? "unpin" : "pin";
    pin.setAttribute("aria-pressed", pins.has(i));
    pin.addEventListener("click", () => toggle(i));
    if (row.dataset.remove) {
      pin.after(Object.assign(make("a", "remove", "remove"), { href: row.dataset.remove, title: "see what the answer becomes without it" }));
    }
    for (const cell of row.cells) {
      if (!cell.dataset.label || !cell.childNodes.length) continue;
      made.querySelector("dl").append(
        make("div", "", make("dt", "", cell.dataset.label), make("dd", "", ...copies(cell.childNodes))));
    }
    made.querySelector(".wires").append(
      ...wires("reads most from", edges.filter(edge => edge[TARGET] === i), SOURCE),
      ...wires("is read most by", edges.filter(edge => edge[SOURCE] === i), TARGET));
    const card = get(`n${row.dataset.name}`)?.querySelectorAll("tr:has(.fm-context)");
    if (card?.length) {
      made.querySelector(".seen").append(
        make("table", "fm-table", make("tbody", "", ...copies([...card].slice(0, EXAMPLES)))));
    }
    return made;
  }

  function show() {
    const some = [...new Set([here, ...[...pins].reverse()])].filter(i => i !== null); // the newest first
    panels.replaceChildren(...(some.length ? some : [0]).map(panel));
    const lines = some.flatMap(i => [SOURCE, TARGET].flatMap(
      end => edges.filter(edge => edge[end] === i && edge[SOURCE] !== pruned).sort(heavier).slice(0, LINED)));
    drawInto(near, lines);
    const ends = new Set(lines.flatMap(edge => [edge[SOURCE], edge[TARGET]]));
    graph.classList.toggle("picked", some.length > 0);
    keep();
    nodes.forEach((node, i) => {
      node.classList.toggle("near", ends.has(i));
      node.classList.toggle("here", i === here);
      node.classList.toggle("pinned", pins.has(i));
      node.setAttribute("aria-pressed", pins.has(i));
    });
  }

  function point(i) {
    if (i === here) return;
    here = i;
    show();
  }

  function toggle(i) {
    pins[pins.has(i) ? "delete" : "add"](i);
    show();
    tell();
  }

  /** What is pinned stands in the address's fragment, by the nodes' ids, and in the links and forms that lead to the same graph. */
  function tell() {
    const hash = pins.size ? `#pin=${[...pins].map(i => encodeURIComponent(nodes[i].dataset.id)).join(",")}` : "";
    history.replaceState(null, "", location.pathname + location.search + hash);
    keep();
  }

  function keep() {
    for (const link of document.querySelectorAll("a[data-keeps], .panel a.remove")) link.hash = location.hash;
    for (const form of document.querySelectorAll("form[action]")) form.action = form.action.split("#")[0] + location.hash;
  }

  function go(i) {
    nodes[i].focus();
    point(i);
  }

  // ---- what the reader does ----
  /** The nearest node in a direction; what lies aside counts more than what lies ahead. */
  function neighbour(i, dx, dy) {
    const [x, y] = at[i];
    let best = i, least = Infinity;
    at.forEach(([u, v], j) => {
      const ahead = (u - x) * dx + (v - y) * dy, aside = Math.abs((u - x) * dy) + Math.abs((v - y) * dx);
      const far = ahead + (dx ? 8 : 2) * aside;
      if (ahead > 0 && far < least) [best, least] = [j, far];
    });
    return best;
  }

  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const indexOf = target => nodes.indexOf(target.closest?.("a.node"));
  let stop = nodes[0];
  stop.tabIndex = 0;
  nodes.forEach(node => node.setAttribute("role", "button"));

  graph.addEventListener("pointerover", event => { if (indexOf(event.target) >= 0) point(indexOf(event.target)); });
  graph.addEventListener("pointerleave", () => {
    const focused = indexOf(document.activeElement);
    point(focused < 0 ? null : focused);
  });
  const frame = graph.parentNode; // a drawing with listeners for the focus would be a stop of its own
  frame.addEventListener("focusin", event => {
    stop.tabIndex = -1;
    stop = event.target;
    stop.tabIndex = 0;
    point(indexOf(stop));
  });
  frame.addEventListener("focusout", () => point(null));
  graph.addEventListener("click", event => {
    const i = indexOf(event.target);
    if (i < 0) return;
    event.preventDefault();
    toggle(i);
  });
  graph.addEventListener("keydown", event => {
    const i = indexOf(event.target), arrow = ARROWS[event.key];
    if (i < 0 || event.ctrlKey || event.altKey || event.metaKey || !(arrow || event.key === " ")) return;
    event.preventDefault();
    if (arrow) nodes[neighbour(i, ...arrow)].focus();
    else toggle(i);
  });
  addEventListener("keydown", event => {
    if (event.key !== "Escape") return;
    pins.clear();
    here = null;
    show();
    tell();
  });
  settings.addEventListener("input", drawEdges);
  settings.addEventListener("submit", event => event.preventDefault());

  slider.value = Math.round(slider.max * Math.log(Math.min(FIRST, all) + 1) / Math.log(all + 1));
  get("pin-ticked")?.addEventListener("click", () => {
    for (const box of document.querySelectorAll("input[name=pick]:checked")) pins.add(rows.indexOf(box.closest("tr")));
    show();
    tell();
  });
  for (const id of location.hash.startsWith("#pin=") ? location.hash.slice(5).split(",") : []) {
    const i = nodes.findIndex(node => node.dataset.id === decodeURIComponent(id));
    if (i >= 0) pins.add(i);
  }
  settings.hidden = get("hint").hidden = false;
  drawEdges();
  show();
})();
