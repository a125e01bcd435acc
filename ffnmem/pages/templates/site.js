/* The search of a site. Each layer's search.js hands over what there is to find: for each neuron the tokens at each end of what
   its value writes and its keys read, those that it fires at most, and its firing rate. What an end is called stands on the page. No network: they are scripts, which a page from disk may load. */
(() => {
  "use strict";
  const MOST = 100, layers = [];
  globalThis.ffnmemNeurons = (layer, neurons) => { layers[layer] = neurons; };

  const box = document.getElementById("q"), told = document.getElementById("told"), found = document.getElementById("found");
  const why = JSON.parse(found.dataset.why);

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
    if (name && layers[name[1]]?.[name[2]]) return [{ layer: Number(name[1]), neuron: Number(name[2]), score: 0, end: 0 }];
    layers.forEach((neurons, layer) => neurons.forEach(([ends, triggers], neuron) => {
      let score = 0, end = 0, least = Infinity;
      for (const word of words) {
        const fits = [...ends, triggers].map((tokens) => fit(word, tokens) ?? Infinity), best = Math.min(...fits);
        if (best === Infinity) return;
        score += best;
        if (best < least) [least, end] = [best, fits.indexOf(best)];
      }
      hits.push({ layer, neuron, score, end });
    }));
    return hits.sort((a, b) => a.score - b.score || a.layer - b.layer || a.neuron - b.neuron);
  }

  function chips(tokens, kind) {
    return element("td", { className: "fm-left" }, element("span", { className: "fm-chips" },
      ...tokens.flatMap((token) => [element("span", { className: `fm-chip ${kind}`, translate: false }, shown(token)), " "])));
  }

  function show() {
    const hits = look(box.value);
    found.hidden = !hits?.length;
    told.textContent = hits === null ? "" : hits.length > MOST ? `the best ${MOST} of ${hits.length.toLocaleString("en")}`
      : hits.length === 1 ? "1 neuron" : `${hits.length} neurons`;
    found.querySelector("tbody").replaceChildren(...(hits ?? []).slice(0, MOST).map(({ layer, neuron, end }) => {
      const [ends, triggers, rate] = layers[layer][neuron], kind = ["fm-promoted", "fm-suppressed"][end % 2];
      const link = element("a", { className: "fm-neuron", href: `${layer}/${neuron}.html` }, `${layer}.${neuron}`);
      const head = element("th", { scope: "row" }, link);
      return element("tr", {}, head, element("td", {}, `${(100 * rate).toFixed(1)}%`),
        element("td", { className: "fm-left" }, why[end]), chips(ends[end] ?? [], kind), chips(triggers, ""));
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
