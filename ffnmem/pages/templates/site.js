/* The search of a site. Each layer's search.js hands over what there is to find: for each neuron the tokens that it promotes,
   those that it fires at most, and its firing rate. No network: they are scripts, which a page from disk may load. */
(() => {
  "use strict";
  const MOST = 100, layers = [];
  globalThis.ffnmemNeurons = (layer, neurons) => { layers[layer] = neurons; };

  const box = document.getElementById("q"), told = document.getElementById("told"), found = document.getElementById("found");

  function element(name, properties, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  const shown = (token) => token.replace(/ /g, "\u00b7").replace(/\n/g, "\u21b5").replace(/\t/g, "\u21e5").replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, "\ufffd") || "\u2205";

  /* How well tokens fit a word: 0 as a whole one, 1 as a part of one, none. Earlier ones count more. */
  function fit(word, tokens) {
    let best = null;
    tokens.forEach((token, rank) => {
      const text = token.toLowerCase();
      if (!text.includes(word)) return;
      const score = (text.trim() === word ? 0 : 100) + rank;
      if (best === null || score < best) best = score;
    });
    return best;
  }

  function look(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean), name = text.trim().match(/^L?(\d+)[.N](\d+)$/i), hits = [];
    if (!words.length) return null;
    if (name && layers[name[1]]?.[name[2]]) return [{ layer: Number(name[1]), neuron: Number(name[2]), score: 0 }];
    layers.forEach((neurons, layer) => neurons.forEach(([promoted, triggers], neuron) => {
      let score = 0;
      for (const word of words) {
        const a = fit(word, promoted), b = fit(word, triggers);
        if (a === null && b === null) return;
        score += Math.min(a ?? Infinity, b ?? Infinity);
      }
      hits.push({ layer, neuron, score });
    }));
    return hits.sort((a, b) => a.score - b.score || a.layer - b.layer || a.neuron - b.neuron);
  }

  function chips(tokens, kind) {
    return element("td", { className: "few" }, element("span", { className: "fm-chips" },
      ...tokens.flatMap((token) => [element("span", { className: `fm-chip ${kind}`, translate: false }, shown(token)), " "])));
  }

  function show() {
    const hits = look(box.value);
    found.hidden = !hits?.length;
    told.textContent = hits === null ? "" : hits.length > MOST ? `the best ${MOST} of ${hits.length.toLocaleString("en")}`
      : hits.length === 1 ? "1 neuron" : `${hits.length} neurons`;
    found.querySelector("tbody").replaceChildren(...(hits ?? []).slice(0, MOST).map(({ layer, neuron }) => {
      const [promoted, triggers, rate] = layers[layer][neuron];
      const link = element("a", { className: "fm-neuron", href: `${layer}/${neuron}.html` }, `${layer}.${neuron}`);
      const head = element("th", { scope: "row" }, link);
      return element("tr", {}, head, element("td", { className: "r" }, `${(100 * rate).toFixed(1)}%`),
        chips(promoted, "fm-promoted"), chips(triggers, ""));
    }));
  }

  let waiting = 0;
  box.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(show, 60); });
  box.form.addEventListener("submit", (event) => {
    event.preventDefault();
    show();
    if (found.querySelectorAll("tbody tr").length === 1) location.href = found.querySelector("tbody a").href;
  });
  addEventListener("load", () => {
    const asked = new URLSearchParams(location.search).get("q");
    if (asked) box.value = asked;
    if (box.value) show();
  });
})();
