const form = document.getElementById("filters");
const claims = [...document.querySelectorAll(".claim")];
const count = document.getElementById("count");

function show() {
  const wanted = new FormData(form);
  const words = wanted.get("text").toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const claim of claims) {
    const own = claim.dataset;
    claim.hidden = !(
      (!wanted.get("paper") || own.paper === wanted.get("paper")) &&
      (!wanted.get("verdict") || own.verdict === wanted.get("verdict")) &&
      (!wanted.get("model") || own.models.split(" ").includes(wanted.get("model"))) &&
      words.every((word) => own.text.includes(word))
    );
    shown += !claim.hidden;
  }
  document.getElementById("none").hidden = shown > 0;
  document.getElementById("columns").hidden = shown === 0;
  count.textContent = `${shown} ${shown === 1 ? "claim" : "claims"}`;
}

// A figure loads where its claim is opened: a browser loads also the lazy frames of closed claims.
function draw(event) {
  for (const frame of event.target.open ? event.target.querySelectorAll("iframe[data-src]") : []) {
    frame.src = frame.dataset.src;
    frame.hidden = false;
    delete frame.dataset.src;
  }
}

document.getElementById("claims").addEventListener("toggle", draw, true);
form.addEventListener("input", show);
form.addEventListener("reset", () => setTimeout(show)); // after the fields are reset
form.addEventListener("submit", (event) => event.preventDefault());
const linked = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
show();
if (linked) {
  linked.open = true;
  linked.style.scrollMarginTop = `${form.offsetHeight}px`; // the filters stay above
  linked.scrollIntoView();
}
