"""The look of `papers.page`: style sheet, and the script that draws the figures in the colours of the page.

Colours are CSS variables with a light and a dark value; `--m0` … `--m3` are those of the models, the same in every
figure. A figure names them as `var(--ink)`; the script puts in what they are now, again when the scheme changes.
"""

INK, MUTED, LINE, SURFACE = "var(--ink)", "var(--muted)", "var(--line)", "var(--surface)"
MODELS = 4


def accent(i: int) -> str:
    """The colour of model i, in figures and in styles; they repeat after four."""
    return f"var(--m{i % MODELS})"


STYLE = """
:root { color-scheme: light dark; --surface: #ffffff; --ink: #1b2027; --muted: #5a6370; --line: #dfe3e8;
  --soft: #f5f6f8; --link: #1f5fbf; --m0: #2f6fd0; --m1: #c4581b; --m2: #1d8659; --m3: #8a4fb8; }
@media screen and (prefers-color-scheme: dark) { :root { --surface: #14171c; --ink: #e4e8ed; --muted: #9aa4b0;
  --line: #313842; --soft: #1c2129; --link: #8ab8ff; --m0: #6ea8ff; --m1: #f0965a; --m2: #4fc793; --m3: #c594ee; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--surface); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
.frame { max-width: 72rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
header, nav, main { min-width: 0; max-width: 56rem; margin-left: auto; margin-right: auto; }
h1 { font-size: 2rem; line-height: 1.2; letter-spacing: -0.01em; margin: 0 0 1rem; text-wrap: balance; }
h2 { font-size: 1.35rem; line-height: 1.3; margin: 0 0 .75rem; text-wrap: balance; }
p { margin: 0 0 1rem; max-width: 44rem; overflow-wrap: anywhere; }
.lead { font-size: 1.1rem; color: var(--muted); }
.lead strong, .lead code { color: var(--ink); }
a { color: var(--link); text-underline-offset: 2px; }
section { margin-top: 3.5rem; scroll-margin-top: 1.5rem; }
nav { font-size: .9rem; margin-top: 1.5rem; padding: 1rem 1.25rem; background: var(--soft); border-radius: 8px; }
nav b { display: block; margin-bottom: .35rem; font-weight: 600; }
nav ol { margin: 0; padding-left: 1.4rem; }
nav li { margin: .2rem 0; }
nav a { color: inherit; text-decoration: none; }
nav a:hover { text-decoration: underline; }
code, pre { font: .86em/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
p code, li code { background: var(--soft); border-radius: 4px; padding: .1em .3em; }
pre { margin: 0 0 1.25rem; padding: .75rem 1rem; background: var(--soft); border-radius: 8px; overflow-x: auto; }
.verdict { margin: 0 0 1.25rem; padding: .1rem 0 .1rem 1rem; border-left: 3px solid var(--line); list-style: none;
  max-width: 45rem; }
.verdict li { margin: .4rem 0; overflow-wrap: anywhere; }
.verdict b, .samples b, .panel b, th b { font-weight: 600; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 23rem), 1fr)); gap: 1.5rem;
  margin: 0 0 1.25rem; }
.panels.wide { grid-template-columns: minmax(0, 1fr); }
.panel { margin: 0; min-width: 0; }
.panel figcaption { font-size: .9rem; line-height: 1.4; margin-bottom: .25rem; }
.panel small, .note, .scroll + .note { color: var(--muted); font-size: .82rem; }
.panel small { display: block; }
.note { margin: -.5rem 0 1.25rem; }
.plot { width: 100%; }
.scroll.long { max-height: 26rem; }
.scroll { overflow: auto; margin: 0 0 1.25rem; border: 1px solid var(--line); border-radius: 8px; }
.caption { font-size: .9rem; margin: 0 0 .35rem; font-weight: 600; }
table { border-collapse: separate; border-spacing: 0; font-size: .84rem; line-height: 1.4; min-width: 100%;
  font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { position: sticky; top: 0; background: var(--soft); font-weight: 600; }
tr:last-child td { border-bottom: 0; }
.wrap td, .wrap th { white-space: normal; vertical-align: top; }
.n { text-align: right; }
.undefined { color: var(--muted); font-style: italic; }
.samples { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 1.25rem;
  margin: 0 0 1.25rem; }
.samples figure { margin: 0; padding: .9rem 1.1rem; background: var(--soft); border-radius: 8px;
  border-top: 3px solid var(--c); }
.samples blockquote { margin: .4rem 0 0; white-space: pre-line; overflow-wrap: anywhere; }
.tokens { margin: 0 0 1.25rem; font-size: .95rem; }
.tokens figcaption { font-size: .9rem; margin-bottom: .3rem; }
.tok { display: inline-block; vertical-align: top; text-align: center; margin: 0 .1rem .3rem; }
.tok > span { display: inline-flex; border: 1px solid transparent; border-radius: 4px; overflow: hidden; }
.tok i { font-style: normal; padding: .05rem .2rem; min-width: .8rem;
  background: color-mix(in srgb, var(--c) calc(var(--w) * 70%), transparent); }
.tok.role i + i { padding-left: .05rem; }
.tok.role > span { border-color: var(--ink); }
.tok small { display: block; font-size: .72rem; line-height: 1.1rem; min-height: 1.1rem; color: var(--muted); }
.key { display: inline-block; width: .7em; height: .7em; border-radius: 3px; background: var(--c); margin-right: .4em; }
footer { margin-top: 4rem; padding-top: 1rem; border-top: 1px solid var(--line); font-size: .82rem;
  color: var(--muted); overflow-wrap: anywhere; }
@media (min-width: 75rem) { .frame { display: grid; grid-template-columns: 13rem minmax(0, 1fr); column-gap: 3rem; }
  header, main { grid-column: 2; margin-left: 0; margin-right: 0; }
  nav { grid-column: 1; grid-row: 1 / span 2; position: sticky; top: 2rem; align-self: start; margin: .4rem 0 0; } }
@media (max-width: 30rem) { .frame { padding: 1.5rem 1rem 3rem; } h1 { font-size: 1.6rem; } }
@media print { nav { display: none; } .frame { display: block; padding: 0; max-width: none; } body { font-size: 11pt; }
  .scroll, .scroll.long { max-height: none; overflow: visible; }
  pre { white-space: pre-wrap; } table { font-size: 6pt; } th, td { padding: 1px 3px; } th { white-space: normal; }
  .panel, .samples figure, .tokens, tr { break-inside: avoid; } h2 { break-after: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""

SCRIPT = """
const specs = JSON.parse(document.getElementById("figures").textContent);
const resolved = value => {
  if (typeof value === "string") return value.replace(/var\\((--[a-z0-9]+)\\)/g, (_, name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  if (Array.isArray(value)) return value.map(resolved);
  if (value && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, resolved(one)]));
  return value;
};
const options = { responsive: true, displayModeBar: false };
const draw = () => specs.forEach((spec, i) => {
  const figure = resolved(spec);
  Plotly.react("figure-" + i, figure.data, figure.layout, options);
});
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
for (const when of ["beforeprint", "afterprint"]) addEventListener(when, draw);
"""
