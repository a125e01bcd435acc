"use strict";
(() => {
  // ---- the mathematics: f and f′ in closed form, in double precision ----
  const DISTANT = 2;

  /** erf z: the series of Abramowitz and Stegun 7.1.6, whose terms are all of one sign, so that none cancels. */
  function erfSeries(z) {
    let term = z, sum = z;
    for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) {
      term *= 2 * z * z / (2 * n + 1);
      sum += term;
    }
    return 2 / Math.sqrt(Math.PI) * Math.exp(-z * z) * sum;
  }

  /** erfc z for z ≥ 2: the continued fraction of Abramowitz and Stegun 7.1.14, from its 60th level upwards. */
  function erfcFraction(z) {
    let rest = z;
    for (let level = 60; level > 0; level--) rest = z + level / 2 / rest;
    return Math.exp(-z * z) / (Math.sqrt(Math.PI) * rest);
  }

  function erfc(z) {
    if (z >= DISTANT) return erfcFraction(z);
    return z <= -DISTANT ? 2 - erfcFraction(-z) : 1 - erfSeries(z);
  }

  const normal = x => erfc(-x / Math.SQRT2) / 2;
  const density = x => Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI);
  const logistic = x => x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x));
  const bend = x => logistic(x) * logistic(-x); // σ(x)(1 − σ(x)), without the lost digits of 1 − σ(x)
  const ROOT = Math.sqrt(2 / Math.PI), CUBIC = 0.044715;
  const inner = x => ROOT * (x + CUBIC * x * x * x);
  const innerSlope = x => ROOT * (1 + 3 * CUBIC * x * x);

  const FUNCTIONS = {
    relu: { value: x => Math.max(x, 0), gradient: x => x > 0 ? 1 : 0 },
    gelu: { value: x => x * normal(x), gradient: x => normal(x) + x * density(x) },
    gelu_tanh: {
      value: x => x * (1 + Math.tanh(inner(x))) / 2,
      gradient: x => {
        const t = Math.tanh(inner(x));
        return (1 + t) / 2 + x / 2 * (1 - t * t) * innerSlope(x);
      },
    },
    silu: { value: x => x * logistic(x), gradient: x => logistic(x) + x * bend(x) },
    swish: {
      value: (x, beta) => x * logistic(beta * x),
      gradient: (x, beta) => logistic(beta * x) + beta * x * bend(beta * x),
    },
    relu2: { value: x => Math.max(x, 0) ** 2, gradient: x => 2 * Math.max(x, 0) },
    sigmoid: { value: logistic, gradient: bend },
    identity: { value: x => x, gradient: () => 1 },
  };
  const evaluate = (name, kind, x, beta) => FUNCTIONS[name][kind](x, beta);

  // ---- what is shown ----
  const get = id => document.getElementById(id);
  const config = JSON.parse(get("config").textContent);
  const names = config.activations.map(one => one.name);
  const largest = Math.max(...config.ranges);
  const start = () => ({ x: config.x, beta: config.beta, range: config.ranges[0], shown: new Set(config.shown) });
  let state = start();
  const form = get("explorer"), plots = get("plots");

  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const rounded = (value, digits) => Number(value.toFixed(digits));
  const title = one => one.name === "swish" ? `Swish (β = ${rounded(state.beta, 3)})` : one.title;
  const visible = () => config.activations.filter(one => state.shown.has(one.name));

  /** A number with a minus sign as wide as a digit, and none for what rounds to zero. */
  function fixed(value, digits) {
    const text = Math.abs(value).toFixed(digits);
    return value < 0 && Number(text) !== 0 ? "\u2212" + text : text;
  }
  const place = x => fixed(x, Math.abs(x * 100 - Math.round(x * 100)) < 1e-9 ? 2 : 4);

  // ---- the state in the address, so that a view can be shared ----
  function readAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    const number = (key, low, high) => {
      const value = given.get(key)?.trim() ? Number(given.get(key)) : NaN;
      return value >= low && value <= high ? value : null;
    };
    state = start();
    state.beta = number("beta", 0, config.highest) ?? state.beta;
    const range = number("range", 0, largest);
    if (config.ranges.includes(range)) state.range = range;
    const x = number("x", -largest, largest);
    if (x !== null) moveTo(x, true);
    if (given.has("show")) state.shown = new Set(given.get("show").split(",").filter(name => names.includes(name)));
  }

  let writing = 0;
  function writeAddress() {
    clearTimeout(writing); // browsers refuse many changes a second
    writing = setTimeout(() => {
      const show = names.filter(name => state.shown.has(name)).join(",");
      const address = `#x=${rounded(state.x, 6)}&beta=${rounded(state.beta, 6)}&range=${state.range}&show=${show}`;
      try {
        history.replaceState(null, "", address);
      } catch {
        location.hash = address;
      }
    }, 150);
  }

  // ---- drawing ----
  const SVG = "http://www.w3.org/2000/svg";
  const PAD = { left: 42, right: 12, top: 26, bottom: 26 };
  const panels = ["value", "gradient"].map(kind => ({
    kind, svg: get(kind), low: 0, high: 1,
    limits: kind === "value" ? [-0.3, 1] : [-0.2, 1.2],
  }));

  function node(parent, tag, attributes, text) {
    const made = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return parent.appendChild(made);
  }

  const across = (panel, x) => PAD.left + (x + state.range) / (2 * state.range) * (panel.width - PAD.left - PAD.right);
  const down = (panel, y) => PAD.top + (panel.high - y) / (panel.high - panel.low) * (panel.height - PAD.top - PAD.bottom);
  const outOf = (panel, y) => y < panel.low || y > panel.high;

  /** Points of a curve from left to right; an even count of steps, so that 0, where some have a kink, is one. */
  function samples(panel, name) {
    const steps = 2 * Math.ceil((panel.width - PAD.left - PAD.right) / 2);
    return Array.from({ length: steps + 1 }, (_, i) => {
      const x = state.range * (2 * i - steps) / steps;
      return [x, evaluate(name, panel.kind, x, state.beta)];
    });
  }

  /** The path of a curve. ReLU's gradient jumps at 0: there the line breaks instead of climbing. */
  function path(panel, name, points) {
    const limit = 4 * (panel.high - panel.low); // far outside the frame, but not so far that drawing suffers
    let previous = null;
    return points.map(([x, y]) => {
      const jump = name === "relu" && panel.kind === "gradient" && previous === 0 && y === 1;
      previous = y;
      const at = `${across(panel, x).toFixed(2)} ${down(panel, clamp(y, panel.low - limit, panel.high + limit)).toFixed(2)}`;
      return jump ? `M${across(panel, 0).toFixed(2)} ${down(panel, 1).toFixed(2)}L${at}` : at;
    }).reduce((text, at, i) => text + (at[0] === "M" ? at : (i ? "L" : "M") + at), "");
  }

  /** A step of 1, 2 or 5 times a power of ten, so that `count` of them or fewer fill a span. */
  function stepFor(span, count) {
    const ten = 10 ** Math.floor(Math.log10(span / count));
    return [1, 2, 5, 10].map(times => times * ten).find(step => span / step <= count);
  }

  /** Round places from low to high, each with its number as text. */
  function ticks(low, high, count) {
    const step = stepFor(high - low, count), digits = Math.max(0, -Math.floor(Math.log10(step)));
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9; i++) found.push([i * step, fixed(i * step, digits)]);
    return found;
  }

  function fit(panel, curves) {
    const most = panel.kind === "value" ? state.range : 2;
    const all = curves.flatMap(points => points.map(([, y]) => y));
    const low = clamp(Math.min(panel.limits[0], ...all), -most, 0);
    const high = clamp(Math.max(panel.limits[1], ...all), 0, most);
    const room = 0.05 * (high - low);
    [panel.low, panel.high] = [low - room, high + room];
  }

  function drawPanel(panel) {
    panel.width = Math.max(200, Math.floor(panel.svg.parentNode.clientWidth));
    panel.height = Math.round(clamp(panel.width * 0.5, 165, 310));
    const drawn = visible().map(one => [one.name, samples(panel, one.name)]);
    fit(panel, drawn.map(([, points]) => points));
    panel.svg.replaceChildren();
    panel.svg.setAttribute("viewBox", `0 0 ${panel.width} ${panel.height}`);
    panel.svg.setAttribute("height", panel.height);
    const right = panel.width - PAD.right, bottom = panel.height - PAD.bottom;
    const grid = node(panel.svg, "g", { class: "grid" });
    for (const [y, label] of ticks(panel.low, panel.high, Math.floor(panel.height / 40))) {
      node(grid, "line", { class: y === 0 ? "zero" : "", x1: PAD.left, x2: right, y1: down(panel, y), y2: down(panel, y) });
      node(grid, "text", { x: PAD.left - 8, y: down(panel, y), dy: ".32em", "text-anchor": "end" }, label);
    }
    for (const [x, label] of ticks(-state.range, state.range, panel.width < 420 ? 7 : 11)) {
      node(grid, "line", { class: x === 0 ? "zero" : "", x1: across(panel, x), x2: across(panel, x), y1: PAD.top, y2: bottom });
      node(grid, "text", { x: across(panel, x), y: bottom + 17, "text-anchor": "middle" }, label);
    }
    const frame = node(panel.svg, "clipPath", { id: `frame-${panel.kind}` });
    node(frame, "rect", { x: PAD.left, y: PAD.top, width: right - PAD.left, height: bottom - PAD.top });
    const lines = node(panel.svg, "g", { "clip-path": `url(#frame-${panel.kind})` });
    for (const [name, points] of drawn) node(lines, "path", { class: `curve s-${name}`, d: path(panel, name, points) });
    panel.line = node(panel.svg, "g", { class: "line" });
  }

  /** The line, where it stands, and a dot where it meets each curve. */
  function drawLine(panel) {
    const x = across(panel, state.x), bottom = panel.height - PAD.bottom;
    panel.line.replaceChildren();
    node(panel.line, "line", { x1: x, x2: x, y1: PAD.top - 4, y2: bottom });
    for (const one of visible()) {
      const y = evaluate(one.name, panel.kind, state.x, state.beta);
      if (!outOf(panel, y)) node(panel.line, "circle", { class: `dot s-${one.name}`, cx: x, cy: down(panel, y), r: 4.5 });
    }
    const half = 36, middle = clamp(x, PAD.left + half, panel.width - PAD.right - half);
    node(panel.line, "rect", { class: "flag", x: middle - half, y: 1, width: 2 * half, height: 21, rx: 5 });
    node(panel.line, "text", { x: middle, y: 12, dy: ".34em", "text-anchor": "middle" }, `x = ${place(state.x)}`);
  }

  function fillTable() {
    const body = get("reading").tBodies[0];
    for (const row of body.rows) {
      const one = config.activations.find(found => found.name === row.dataset.name);
      row.hidden = !state.shown.has(one.name);
      row.querySelector(".title").textContent = title(one);
      for (const kind of ["value", "gradient"]) {
        const cell = row.querySelector(`data.${kind}`), y = evaluate(one.name, kind, state.x, state.beta);
        cell.value = y;
        cell.textContent = fixed(y, 4);
      }
    }
    get("none").hidden = state.shown.size > 0;
    for (const part of document.querySelectorAll(".at-x")) part.textContent = place(state.x);
  }

  /** What β makes of Swish. It differs from ReLU by at most SiLU's largest dip over β. */
  function describeBeta() {
    const beta = state.beta, away = config.dip / beta;
    if (beta === 0) return "x/2: a line, and no memory is ever silent";
    const near = beta === 1 ? "SiLU; " : beta === 1.702 ? "the quick GELU; " : "";
    return `${near}at most ${away < 1 ? away.toPrecision(2) : "1 or more"} away from ReLU`;
  }

  // A field that somebody types in keeps what they typed.
  function setField(field, value) {
    if (field !== document.activeElement || field.type === "range") field.value = value;
  }

  function fillControls() {
    setField(get("x"), rounded(state.x, 6));
    setField(get("beta"), rounded(state.beta, 6));
    setField(get("slider"), state.beta);
    get("slider").setAttribute("aria-valuetext", `${rounded(state.beta, 3)}: ${describeBeta()}`);
    get("beta-says").textContent = describeBeta();
    for (const box of form.elements.show) box.checked = state.shown.has(box.value);
    for (const button of form.elements.range) button.checked = Number(button.value) === state.range;
    get("chip-swish").textContent = title(config.activations.find(one => one.name === "swish"));
    plots.setAttribute("aria-valuemin", -state.range);
    plots.setAttribute("aria-valuemax", state.range);
    plots.setAttribute("aria-valuenow", rounded(state.x, 6));
    plots.setAttribute("aria-valuetext", `x = ${place(state.x)}`);
  }

  let speaking = 0;
  /** The readings in words for a screen reader, once the line rests; every step of a drag would be noise. */
  function speak() {
    clearTimeout(speaking);
    speaking = setTimeout(() => {
      const said = visible().map(one => {
        const [y, slope] = ["value", "gradient"].map(kind => fixed(evaluate(one.name, kind, state.x, state.beta), 4));
        return `${title(one)}: ${y}, gradient ${slope}`;
      });
      get("said").textContent = `At x = ${place(state.x)}. ${said.join("; ")}`;
    }, 500);
  }

  function show(whole = true) {
    if (whole) panels.forEach(drawPanel);
    panels.forEach(drawLine);
    fillTable();
    fillControls();
  }

  function changed(whole = true) {
    show(whole);
    writeAddress();
    speak();
  }

  // ---- what the reader does ----
  /** Move the line; to a place outside of the view only when `widen` lets the view grow to hold it. */
  function moveTo(x, widen = false) {
    const before = state.range;
    if (widen) state.range = config.ranges.find(range => range >= Math.max(before, Math.abs(x))) ?? largest;
    state.x = clamp(x, -state.range, state.range);
    return state.range !== before;
  }

  function follow(event, panel) {
    const box = panel.svg.getBoundingClientRect();
    const part = (event.clientX - box.left - PAD.left) / (box.width - PAD.left - PAD.right);
    moveTo(rounded(state.range * (2 * part - 1), 2));
    changed(false);
  }

  for (const panel of panels) {
    panel.svg.addEventListener("pointerdown", event => {
      if (event.button !== 0) return;
      panel.svg.setPointerCapture(event.pointerId);
      if (event.pointerType !== "touch") follow(event, panel); // a finger may be about to scroll
    });
    panel.svg.addEventListener("pointermove", event => {
      if (panel.svg.hasPointerCapture(event.pointerId)) follow(event, panel);
    });
    panel.svg.addEventListener("click", event => follow(event, panel));
  }

  plots.addEventListener("keydown", event => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const step = event.shiftKey ? 1 : 0.1;
    const to = {
      ArrowLeft: state.x - step, ArrowDown: state.x - step, ArrowRight: state.x + step, ArrowUp: state.x + step,
      PageDown: state.x - 1, PageUp: state.x + 1, Home: -state.range, End: state.range,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    moveTo(rounded(to, 6));
    changed(false);
  });

  function typed(field, low, high, use) {
    field.addEventListener("input", () => {
      const value = field.valueAsNumber;
      if (value >= low && value <= high) changed(use(value) !== false);
    });
    field.addEventListener("blur", fillControls); // what could not be used goes back to what is
  }
  typed(get("x"), -largest, largest, value => moveTo(value, true));
  typed(get("beta"), 0, config.highest, value => { state.beta = value; });
  typed(get("slider"), 0, config.highest, value => { state.beta = value; });

  form.addEventListener("change", event => {
    if (event.target.name === "show") state.shown[event.target.checked ? "add" : "delete"](event.target.value);
    else if (event.target.name === "range") {
      state.range = Number(event.target.value);
      moveTo(state.x);
    } else return;
    changed();
  });
  form.addEventListener("submit", event => event.preventDefault());
  get("reset").addEventListener("click", () => { state = start(); changed(); });
  addEventListener("hashchange", () => { readAddress(); show(); });

  form.hidden = false;
  readAddress();
  show();
  let width = plots.clientWidth;
  new ResizeObserver(() => {
    if (plots.clientWidth !== width) { width = plots.clientWidth; show(); }
  }).observe(plots);

  // For a console, and for whoever checks the numbers: activations.value("gelu", -1), activations.gradient("swish", -1, 2)
  window.activations = Object.freeze({
    names: Object.freeze(Object.keys(FUNCTIONS)),
    value: (name, x, beta = state.beta) => evaluate(name, "value", x, beta),
    gradient: (name, x, beta = state.beta) => evaluate(name, "gradient", x, beta),
  });
})();
