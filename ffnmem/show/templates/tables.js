/* Tables that sort by a click on a column's name and filter by words. Without this script they read as they were written.

   A table is left alone if it has no column names, spans rows, or is marked data-still. What is numbers sorts by value, the
   largest first: of <data>, of a neuron's name by layer and number, else of the text. A third click restores the order.
   fmTables(root) prepares the tables of what came later. */
(() => {
  "use strict";
  const MANY = 12;

  const plain = (text) => text.replace(/[\s\u00a0,]/g, "").replace(/\u2212/g, "-");

  function keyOf(cell) {
    if (!cell) return null;
    const name = cell.querySelector(".fm-neuron");
    if (name) {
      const [layer, neuron] = name.textContent.trim().split(".").map(Number);
      if (Number.isInteger(layer) && Number.isInteger(neuron)) return layer * 1e7 + neuron;
    }
    const datum = cell.querySelector("data[value]");
    const text = cell.textContent.trim();
    if (datum) return Number.isFinite(Number(datum.value)) ? Number(datum.value) : null;
    if (text === "" || text === "\u2013") return null;
    const number = plain(text).match(/^[<>]?([+-]?\d*\.?\d+(?:e[+-]?\d+)?)%?$/i);
    return number ? Number(number[1]) : text;
  }

  function compare(a, b, down) {
    if (a.key === null || b.key === null) return a.key === b.key ? a.at - b.at : a.key === null ? 1 : -1;
    const both = typeof a.key === "number" && typeof b.key === "number";
    const order = both ? a.key - b.key : String(a.key).localeCompare(String(b.key), undefined, { numeric: true });
    return (down ? -order : order) || a.at - b.at;
  }

  function element(name, properties, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  function prepare(table) {
    const head = table.tHead;
    if (!head || head.rows.length !== 1 || table.dataset.still !== undefined || table.querySelector("tbody [rowspan]")) return;
    const groups = [...table.tBodies].map((body) => {
      const rows = [...body.rows];
      return { body, first: rows.filter((row) => row.querySelector("[colspan]")), rows: rows.filter((row) => !row.querySelector("[colspan]")) };
    });
    const rows = groups.flatMap((group) => group.rows);
    const names = [...head.rows[0].cells].filter((cell) => cell.tagName === "TH" && cell.textContent.trim());
    if (!names.length || Math.max(0, ...groups.map((group) => group.rows.length)) < 2 || table.dataset.prepared) return;
    table.dataset.prepared = "yes";
    const place = new Map(rows.map((row, at) => [row, at]));

    function keys(column) {
      return new Map(rows.map((row) => [row, { row, at: place.get(row), key: keyOf(row.cells[column]) }]));
    }

    function sort(name, order) {
      for (const other of names) other.removeAttribute("aria-sort");
      if (order) name.setAttribute("aria-sort", order);
      const found = order ? keys(name.cellIndex) : null;
      for (const group of groups) {
        const sorted = found
          ? group.rows.map((row) => found.get(row)).sort((a, b) => compare(a, b, order === "descending")).map((one) => one.row)
          : group.rows;
        group.body.append(...group.first, ...sorted);
      }
      chosen.value = order ? `${names.indexOf(name)} ${order}` : "";
    }

    function orders(name) {
      const found = [...keys(name.cellIndex).values()].filter((one) => one.key !== null);
      return found.some((one) => typeof one.key === "number") && found.every((one) => typeof one.key === "number")
        ? ["descending", "ascending"] : ["ascending", "descending"];
    }

    /* Where the names are out of sight, on a narrow screen, a list of them takes their place. */
    const chosen = element("select", {}, element("option", { value: "" }, "as written"));
    const buttons = names.map((name, at) => {
      const title = name.textContent.trim().replace(/\s+/g, " ");
      const choice = element("button", { type: "button", className: "fm-sort" }, ...name.childNodes);
      name.append(choice);
      choice.addEventListener("click", () => {
        const [first, second] = orders(name), now = name.getAttribute("aria-sort");
        sort(name, now === null ? first : now === first ? second : null);
      });
      for (const order of ["descending", "ascending"]) {
        chosen.append(element("option", { value: `${at} ${order}` }, `${title} ${order === "descending" ? "\u2193" : "\u2191"}`));
      }
      return choice;
    });
    chosen.addEventListener("change", () => {
      const [at, order] = chosen.value.split(" ");
      sort(names[Number(at)], order || null);
    });

    const tools = element("div", { className: "fm-tools" });
    const label = table.closest("[aria-label]")?.getAttribute("aria-label")?.split(";")[0] ?? "table";
    if (rows.length > MANY) {
      const box = element("input", { type: "search", placeholder: "filter rows", autocomplete: "off", spellcheck: false });
      box.setAttribute("aria-label", `filter rows: ${label}`);
      const told = element("output", {});
      box.addEventListener("input", () => {
        const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
        let shown = 0;
        for (const row of rows) {
          const text = row.textContent.toLowerCase();
          row.hidden = !words.every((word) => text.includes(word));
          shown += row.hidden ? 0 : 1;
        }
        for (const group of groups) for (const row of group.first) row.hidden = group.rows.every((one) => one.hidden);
        told.textContent = words.length ? `${shown} of ${rows.length}` : "";
      });
      tools.append(box, told);
    }
    tools.append(element("label", { className: "fm-order" }, "sort by ", chosen));
    (table.closest(".box, .fm-wide-box") ?? table).before(tools);

    const fit = () => {
      const clipped = getComputedStyle(head).position === "absolute";
      tools.classList.toggle("fm-clipped", clipped);
      for (const choice of buttons) choice.tabIndex = clipped ? -1 : 0;
    };
    fit();
    addEventListener("resize", fit);
  }

  globalThis.fmTables = (root = document) => {
    for (const table of root.querySelectorAll("table")) prepare(table);
  };
  globalThis.fmTables();
})();
