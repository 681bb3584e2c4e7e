"use strict";
// Filters of the page of claims. What is chosen stands in the address, so that it can be linked.
(() => {
  const form = document.getElementById("filters");
  const claims = [...document.querySelectorAll(".claim")].map((element) => ({
    element, text: element.textContent.toLowerCase(),
  }));
  const groups = [...document.querySelectorAll(".group")];
  const keys = ["verdict", "paper", "group", "experiment"];

  function apply() {
    const wanted = new Map(keys.map((key) => [key, form.elements[key].value]).filter(([, value]) => value));
    const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const filtered = wanted.size > 0 || words.length > 0;
    let shown = 0;
    for (const { element, text } of claims) {
      const fits = [...wanted].every(([key, value]) => element.dataset[key] === value)
        && words.every((word) => text.includes(word));
      element.hidden = !fits;
      shown += fits;
    }
    for (const group of groups) {
      const visible = group.querySelectorAll(".claim:not([hidden])").length;
      group.hidden = filtered && visible === 0;
      for (const details of group.querySelectorAll("details")) {
        if (details.querySelector("tr.claim")) {
          const some = details.querySelector("tr.claim:not([hidden])") !== null;
          details.hidden = filtered && !some;
          details.open = filtered && some;
        }
      }
    }
    document.getElementById("count").textContent = `${shown} of ${claims.length} claims`;
    return filtered;
  }

  function remember() {
    const chosen = new URLSearchParams();
    for (const key of [...keys, "words"]) if (form.elements[key].value) chosen.set(key, form.elements[key].value);
    history.replaceState(null, "", chosen.size ? `#${chosen}` : location.pathname);
  }

  function read() {
    const hash = location.hash.slice(1);
    const chosen = new URLSearchParams(hash.includes("=") ? hash : "");
    for (const key of [...keys, "words"]) form.elements[key].value = chosen.get(key) ?? "";
    apply();
    const target = hash && !hash.includes("=") ? document.getElementById(decodeURIComponent(hash)) : null;
    if (target) {
      const details = target.closest("details");
      if (details) details.open = true;
      target.scrollIntoView();
    }
  }

  form.addEventListener("input", () => { apply(); remember(); });
  form.addEventListener("reset", () => setTimeout(() => { apply(); remember(); }));
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", read);
  form.hidden = false;
  read();
})();
