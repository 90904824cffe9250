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
  count.textContent = `${shown} claims`;
}

form.addEventListener("input", show);
form.addEventListener("submit", (event) => event.preventDefault());
const linked = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
if (linked) linked.open = true;
show();
