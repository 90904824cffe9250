const specs = JSON.parse(document.getElementById("figures").textContent);
const resolved = value => {
  if (typeof value === "string") return value.replace(/var\((--[a-z0-9]+)\)/g, (_, name) =>
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
