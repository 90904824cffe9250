"""Style and script of the page that `features.profile.map` writes."""

STYLE = """
:root { color-scheme: light dark; --surface: #ffffff; --ink: #1b2027; --muted: #5a6370; --line: #dfe3e8;
  --soft: #f5f6f8; --none: #c3c9d0; --on: #1f5fbf; }
@media (prefers-color-scheme: dark) { :root { --surface: #14171c; --ink: #e4e8ed; --muted: #9aa4b0; --line: #313842;
  --soft: #1c2129; --none: #3f4752; --on: #8ab8ff; } }
* { box-sizing: border-box; }
html, body { height: 100%; }
body { margin: 0; background: var(--surface); color: var(--ink); display: flex; flex-direction: column;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
header { display: flex; flex-wrap: wrap; gap: .5rem 2rem; align-items: center; justify-content: space-between;
  padding: .9rem 1.25rem .6rem; }
h1 { font-size: 1.15rem; line-height: 1.3; margin: 0; }
p { margin: 0; color: var(--muted); font-size: .88rem; }
.switch { display: flex; border: 1px solid var(--line); border-radius: 8px; overflow: hidden; }
button { font: inherit; color: inherit; background: none; border: 0; cursor: pointer; }
.switch button { padding: .35rem .9rem; }
.switch button[aria-pressed="true"] { background: var(--ink); color: var(--surface); }
button:focus-visible { outline: 2px solid var(--on); outline-offset: -2px; }
main { flex: 1; position: relative; min-height: 20rem; }
#map { position: absolute; inset: 0; }
#tip { position: absolute; z-index: 2; max-width: min(26rem, 90vw); padding: .6rem .8rem; pointer-events: none;
  background: var(--surface); border: 1px solid var(--line); border-radius: 8px; box-shadow: 0 4px 16px #0003;
  font-size: .9rem; overflow-wrap: anywhere; }
#tip mark { background: color-mix(in srgb, var(--on) 25%, transparent); color: inherit; border-radius: 3px;
  padding: 0 .1em; }
#tip small { display: block; margin-top: .35rem; color: var(--muted); font-size: .8rem; }
#key { display: flex; flex-wrap: wrap; gap: .3rem; padding: .6rem 1.25rem .9rem; font-size: .82rem; min-height: 3.4rem;
  max-height: 8rem; overflow-y: auto; }
#key button { display: flex; align-items: center; gap: .4em; padding: .15rem .55rem; border-radius: 99px;
  border: 1px solid var(--line); font-variant-numeric: tabular-nums; }
#key button[aria-pressed="true"] { border-color: var(--ink); background: var(--soft); }
#key i { width: .7em; height: .7em; border-radius: 50%; background: var(--c); }
#key small { color: var(--muted); }
"""

SCRIPT = r"""
const raw = JSON.parse(document.getElementById("data").textContent);
const arrays = { Uint8Array, Int16Array, Uint16Array, Int32Array, Float32Array };
const unpack = ({ type, data }) => {
  const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
  return new arrays[type](bytes.buffer);
};
const d = Object.fromEntries(Object.entries(raw).map(([key, v]) => [key, v && v.type ? unpack(v) : v]));
const n = d.x.length, NOISE = -1, KEYS = 24;

// colours: hues a golden angle apart for clusters, largest first; dark to light for k*
const dark = matchMedia("(prefers-color-scheme: dark)");
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const PALETTE = 48;
const light = i => (dark.matches ? 62 : 45) + [0, 9, -9][(i >> 1) % 3];
const hue = i => `hsl(${(i * 137.508 + 210) % 360}, ${[65, 45, 80][i % 3]}%, ${light(i)}%)`;
const STOPS = ["#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#fde725"];
const mix = (a, b, t) => "#" + [1, 3, 5].map(i => Math.round(parseInt(a.slice(i, i + 2), 16) * (1 - t) +
  parseInt(b.slice(i, i + 2), 16) * t).toString(16).padStart(2, "0")).join("");
const viridis = t => {
  const s = Math.min(t, 0.9999) * 5, i = Math.floor(s);
  return mix(STOPS[i], STOPS[i + 1], s - i);
};

const count = values => {
  const found = new Map();
  for (const v of values) found.set(v, (found.get(v) || 0) + 1);
  return found;
};
const sizes = count(d.cluster), deep = count(d.depth);
const clusters = [...sizes.keys()].filter(c => c !== NOISE).sort((a, b) => sizes.get(b) - sizes.get(a) || a - b);
const rank = new Map(clusters.map((c, i) => [c, i]));
const modes = {
  cluster: {
    of: i => d.cluster[i], all: [...clusters, NOISE], size: v => sizes.get(v) || 0,
    name: v => v === NOISE ? "in none" : `cluster ${v}`,
    slot: v => rank.get(v) % PALETTE, slots: PALETTE, colour: hue, background: v => v === NOISE,
    paint: v => v === NOISE ? css("--none") : hue(rank.get(v) % PALETTE),
  },
  depth: {
    of: i => d.depth[i], all: [...deep.keys()].sort((a, b) => a - b), size: v => deep.get(v),
    name: v => `k* = ${v}`, slot: v => v, slots: d.depths + 1, colour: v => viridis(v / Math.max(1, d.depths)),
    background: () => false, paint: v => viridis(v / Math.max(1, d.depths)),
  },
};

let mode = "cluster", only = null, shown = [];
const pick = (index, values) => Float32Array.from(index, i => values[i]);
const size = Math.max(2, Math.min(6, 420 / Math.sqrt(n)));

function draw() {
  const m = modes[mode], front = [], back = [];
  for (let i = 0; i < n; i++) {
    const v = m.of(i);
    (only === null ? m.background(v) : v !== only) ? back.push(i) : front.push(i);
  }
  shown = [back, front];
  const scale = [];
  for (let s = 0; s < m.slots; s++) for (const end of [s, s + 1]) scale.push([end / m.slots, m.colour(s)]);
  const unlabelled = mode === "cluster" && only === NOISE;
  const colours = unlabelled ? css("--muted") : Float32Array.from(front, i => m.slot(m.of(i)) + 0.5);
  const trace = (index, marker) => ({ type: "scattergl", mode: "markers", x: pick(index, d.x), y: pick(index, d.y),
    hoverinfo: "none", marker: { size, line: { width: 0 }, ...marker } });
  const axis = { visible: false, zeroline: false };
  Plotly.react("map", [
    trace(back, { color: css("--none"), opacity: only === null ? 0.5 : 0.25 }),
    trace(front, { color: colours, colorscale: scale, cmin: 0, cmax: m.slots, opacity: 0.85,
      size: only === null ? size : 1.6 * size }),
  ], { margin: { l: 8, r: 8, t: 0, b: 0 }, showlegend: false, hovermode: "closest", hoverdistance: 8, dragmode: "pan",
    paper_bgcolor: css("--surface"), plot_bgcolor: css("--surface"), xaxis: axis, yaxis: { ...axis, scaleanchor: "x" },
    uirevision: "stay" }, { responsive: true, scrollZoom: true, displaylogo: false, displayModeBar: false });
  for (const name in modes) document.getElementById(`by-${name}`).setAttribute("aria-pressed", name === mode);
  keys();
}

function keys() {
  const m = modes[mode], box = document.getElementById("key");
  const listed = m.all.length > KEYS ? [...m.all.slice(0, KEYS), ...(mode === "cluster" ? [NOISE] : [])] : m.all;
  if (only !== null && !listed.includes(only)) listed.push(only);
  box.replaceChildren(...listed.filter(v => m.size(v)).map(v => {
    const [b, dot, small] = ["button", "i", "small"].map(tag => document.createElement(tag));
    dot.style.setProperty("--c", m.paint(v));
    small.textContent = m.size(v).toLocaleString("en");
    b.append(dot, m.name(v), small);
    b.setAttribute("aria-pressed", v === only);
    b.onclick = () => { only = only === v ? null : v; draw(); };
    return b;
  }));
  if (m.all.length > KEYS) {
    const more = document.createElement("small");
    more.textContent = `the ${KEYS} largest of ${clusters.length}; click a point for any other`;
    box.append(more);
  }
}

// ---- the text of a token --------------------------------------------------------------------
function context(i, before = 14, after = 7) {
  const at = d.at[i], run = d.run[at];
  let left = "", right = "", j = at;
  while (j > 0 && d.run[j - 1] === run && at - j < before) { j--; if (!d.first[j]) left = d.words[d.token[j]] + left; }
  if (!(d.first[j] || (j > 0 && d.run[j - 1] === run && d.first[j - 1]))) left = "…" + left;
  for (j = at; j + 1 < d.run.length && d.run[j + 1] === run && j - at < after; j++) right += d.words[d.token[j + 1]];
  if (j - at < after) right += d.words[d.target[j]];
  return [left, d.words[d.token[at]], right + "…"];
}

const tip = document.getElementById("tip"), map = document.getElementById("map");
function show(i, event) {
  const [left, token, right] = context(i), at = d.at[i];
  const [mark, small] = ["mark", "small"].map(tag => document.createElement(tag));
  mark.textContent = token;
  const [said, came] = [d.prediction[i], d.target[at]].map(word => d.words[word].trim() || d.words[word]);
  small.textContent = `next, says the model: “${said}”; it was “${came}” · ` +
    `k* = ${d.depth[i]} · ${modes.cluster.name(d.cluster[i])} · document ${d.document[at]}, position ${d.position[at]}`;
  tip.replaceChildren(left, mark, right, small);
  tip.hidden = false;
  const box = map.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  tip.style.left = `${Math.max(8, Math.min(x + 14, box.width - tip.offsetWidth - 8))}px`;
  tip.style.top = `${y + 18 + tip.offsetHeight < box.height ? y + 18 : Math.max(0, y - tip.offsetHeight - 12)}px`;
}

draw();
const point = e => shown[e.points[0].curveNumber][e.points[0].pointNumber];
map.on("plotly_hover", e => show(point(e), e.event));
map.on("plotly_unhover", () => { tip.hidden = true; });
map.on("plotly_click", e => { const v = modes[mode].of(point(e)); only = only === v ? null : v; draw(); });
map.on("plotly_doubleclick", () => { if (only !== null) { only = null; draw(); } });
for (const name in modes)
  document.getElementById(`by-${name}`).onclick = () => { mode = name; only = null; draw(); };
dark.addEventListener("change", draw);
"""
