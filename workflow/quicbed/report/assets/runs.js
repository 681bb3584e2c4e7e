"use strict";
// The page of runs: unpacks the runs (quicbed.report.grid), filters them by what the address and the form say, and shows
// one with its command. Texts of runs become text, never markup.
(() => {
  const packed = JSON.parse(document.getElementById("data").textContent);
  const rows = [];
  for (const [name, values] of Object.entries(packed.numbers)) {
    values.forEach((value, row) => { (rows[row] ??= { row })[name] = value; });
  }
  for (const [name, [texts, places]] of Object.entries(packed.texts)) {
    places.forEach((place, row) => { rows[row][name] = texts[place]; });
  }
  for (const run of rows) {
    run.origin = run.place ? `${run.place}/${run.name}` : run.name;
    run.started = run.started_at === null ? "" : new Date(run.started_at).toISOString().replace("T", " ").replace("Z", "");
    run.pair = run.client_library === run.server_library || !run.server_library
      ? run.client_library : `${run.client_library} with ${run.server_library}`;
    run.outcome = run.contaminated && run.status === "ok" ? "contaminated" : run.status;
    run.why = run.reason || run.contamination || "";
  }

  const form = document.getElementById("filters");
  const SELECTS = ["experiment", "library", "label", "arm", "status"];
  const LINKED = ["campaign", "cell", "figure", "host", "run"]; // only in the address
  const values = {
    experiment: (run) => [run.experiment], library: (run) => [run.client_library, run.server_library],
    label: (run) => [run.label], arm: (run) => [run.arm], status: (run) => [run.outcome],
  };
  for (const key of SELECTS) {
    const all = new Set(rows.flatMap(values[key]).filter((value) => value !== null && value !== undefined));
    for (const value of [...all].sort()) form.elements[key].add(new Option(value, value));
  }

  let linked = {};
  let wanted = () => true;

  function choose() {
    const chosen = Object.fromEntries(SELECTS.map((key) => [key, form.elements[key].value]).filter(([, value]) => value));
    const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const cells = linked.cell ? new Set(linked.cell.split(",")) : null;
    let drawn = null;
    if (linked.figure) {
      const ranges = Object.hasOwn(packed.figures, linked.figure) ? packed.figures[linked.figure] : [];
      drawn = new Set(ranges.flatMap(([first, length]) => Array.from({ length }, (_, number) => first + number)));
    }
    wanted = (run) =>
      (!linked.campaign || run.campaign === linked.campaign)
      && (!cells || cells.has(run.cell))
      && (!drawn || drawn.has(run.row))
      && (!linked.host || run.host === linked.host)
      && (!linked.run || run.origin === linked.run)
      && Object.entries(chosen).every(([key, value]) => values[key](run).includes(value))
      && words.every((word) => text(run).includes(word));
  }

  function text(run) {
    run.text ??= [run.origin, run.experiment, run.pair, run.label, run.arm, run.outcome, run.why, run.proof]
      .join(" ").toLowerCase();
    return run.text;
  }

  const LABELS = { campaign: "campaign", cell: "cell", figure: "figure", host: "host", run: "run" };
  const chosenLine = document.getElementById("chosen");
  function describe() {
    chosenLine.replaceChildren();
    for (const key of LINKED.filter((one) => linked[one])) {
      const button = document.createElement("button");
      const many = key === "cell" ? linked.cell.split(",").length : 1;
      const what = many > 3 ? `${many} cells` : `${LABELS[key]} ${linked[key].replaceAll(",", ", ")}`;
      button.type = "button";
      button.textContent = `${what} ×`;
      button.setAttribute("aria-label", `${what}: remove this filter`);
      button.addEventListener("click", () => { delete linked[key]; update(); });
      chosenLine.append(button, " ");
    }
    chosenLine.hidden = !chosenLine.childElementCount;
  }

  function remember() {
    const chosen = new URLSearchParams(linked);
    for (const key of [...SELECTS, "words"]) if (form.elements[key].value) chosen.set(key, form.elements[key].value);
    history.replaceState(null, "", chosen.size ? `#${chosen}` : location.pathname);
  }

  function update() {
    choose();
    describe();
    remember();
    table.setFilter((run) => wanted(run));
  }

  function read() {
    const chosen = new URLSearchParams(location.hash.slice(1));
    linked = Object.fromEntries(LINKED.filter((key) => chosen.get(key)).map((key) => [key, chosen.get(key)]));
    for (const key of [...SELECTS, "words"]) form.elements[key].value = chosen.get(key) ?? "";
    choose();
    describe();
  }

  const quoted = (word) => (/^[\w./:@%+=-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
  const panel = document.getElementById("run");
  const FACTS = [
    ["status", "outcome"], ["why", "why"], ["experiment", "experiment"], ["variant", "label"], ["arm", "arm"],
    ["client", "client_build"], ["server", "server_build"], ["goodput [Mbit/s]", "goodput_mbps"],
    ["time to first byte [ms]", "ttfb_ms"], ["block", "block"], ["place in it", "order"], ["attempt", "attempt"],
    ["started (UTC)", "started"], ["cipher", "client_negotiated_cipher"], ["key exchange", "client_negotiated_group"],
    ["signature", "client_negotiated_signature"], ["proof", "proof"], ["cell", "cell"], ["campaign", "campaign"],
    ["testbed", "testbed"], ["host", "host"], ["scale", "scale"], ["lies in", "origin"],
  ];
  function show(run, focus = true) {
    const name = run.origin.slice(run.origin.indexOf("!") + 1);
    panel.querySelector("h2").textContent = name;
    panel.querySelector("pre code").textContent = `quicbed show ${quoted(name)}`;
    const list = panel.querySelector("dl");
    list.replaceChildren();
    for (const [title, key] of FACTS) {
      const value = run[key];
      if (value === null || value === undefined || value === "") continue;
      list.append(Object.assign(document.createElement("dt"), { textContent: title }),
        Object.assign(document.createElement("dd"), { textContent: value }));
    }
    panel.hidden = false;
    if (focus) panel.focus();
  }
  panel.querySelector(".close").addEventListener("click", () => { panel.hidden = true; });
  panel.querySelector(".copy").addEventListener("click", (event) => {
    const selection = window.getSelection();
    selection.selectAllChildren(panel.querySelector("pre code"));
    const copied = document.execCommand("copy"); // navigator.clipboard is not there for files
    event.target.textContent = copied ? "copied" : "select and copy it";
  });

  const opens = (cell) => {
    const run = cell.getData();
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "show";
    button.setAttribute("aria-label", `show run ${run.name} of ${run.experiment ?? "unknown"}`);
    return button;
  };
  const number = { hozAlign: "right", headerHozAlign: "right", sorter: "number" };
  read();
  const table = new Tabulator("#grid", {
    data: rows,
    index: "row",
    height: "34rem",
    layout: "fitDataStretch",
    placeholder: "No run fits.",
    initialFilter: (run) => wanted(run),
    columns: [
      { title: "run", formatter: opens, headerSort: false, width: 62 },
      { title: "experiment", field: "experiment", width: 132 },
      { title: "library", field: "pair", width: 150 },
      { title: "variant", field: "label", width: 190 },
      { title: "arm", field: "arm", width: 82 },
      { title: "block", field: "block", width: 84, ...number },
      { title: "attempt", field: "attempt", width: 102, ...number },
      { title: "Mbit/s", field: "goodput_mbps", width: 96, ...number },
      { title: "TTFB [ms]", field: "ttfb_ms", width: 116, ...number },
      { title: "status", field: "outcome", width: 112 },
      { title: "why", field: "why", width: 200 },
      { title: "started (UTC)", field: "started", width: 190 },
      { title: "directory", field: "origin", minWidth: 300 },
    ],
  });
  table.on("tableBuilt", () => {
    // Tabulator nests groups of rows, which a screen reader takes for no table
    const roles = { "header-contents": "presentation", tableholder: "rowgroup", table: "presentation" };
    for (const [name, role] of Object.entries(roles)) {
      document.querySelector(`#grid .tabulator-${name}`).setAttribute("role", role);
    }
  });
  table.on("rowClick", (_, row) => show(row.getData()));
  table.on("dataFiltered", (_, found) => {
    document.getElementById("count").textContent = `${found.length} of ${rows.length} runs`;
  });
  form.addEventListener("input", update);
  form.addEventListener("reset", () => setTimeout(() => { linked = {}; update(); }));
  form.addEventListener("submit", (event) => event.preventDefault());
  const follow = () => {
    const one = linked.run ? rows.find((run) => run.origin === linked.run) : null;
    panel.hidden = true;
    if (one) show(one, false);
  };
  window.addEventListener("hashchange", () => { read(); follow(); table.setFilter((run) => wanted(run)); });
  form.hidden = false;
  follow();
})();
