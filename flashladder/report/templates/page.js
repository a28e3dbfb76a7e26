// Sorting, filters, samples and the theme of the page. No library, no request; all text is set as text, never as markup.
"use strict";
(() => {
  const make = (name, text, className) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };

  // Theme: system, light, dark. A page from a disk may have no storage.
  const themes = ["system", "light", "dark"];
  const button = document.getElementById("theme");
  const kept = { get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
                 set: (theme) => { try { localStorage.setItem("theme", theme); } catch { /* not kept */ } } };
  const show = (theme) => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };
  let theme = themes.includes(kept.get()) ? kept.get() : "system";
  show(theme);
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    kept.set(theme);
    show(theme);
  });

  // Sorting: a button in each head of a column; numbers by their whole value, words by themselves, dashes last.
  const key = (cell, numbers) => {
    const text = cell.textContent.trim();
    if (text === "–" || text === "") return null;
    if (!numbers) return text;
    return Number(cell.dataset.s ?? text.replaceAll(",", ""));
  };
  const compare = (a, b, numbers, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (numbers ? a - b : a.localeCompare(b, "en", { numeric: true }));
  };
  for (const table of document.querySelectorAll(".table table")) {
    const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    const body = table.tBodies[0];
    heads.forEach((head, column) => {
      const sorter = make("button", head.textContent);
      sorter.type = "button";
      head.replaceChildren(sorter);
      head.setAttribute("aria-sort", "none");
      sorter.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...body.rows];
        const keyed = (numbers) => rows.map((row) => [key(row.cells[column], numbers), row]);
        let pairs = keyed(true);
        const numbers = !pairs.some(([value]) => Number.isNaN(value));
        if (!numbers) pairs = keyed(false);
        pairs.sort((a, b) => compare(a[0], b[0], numbers, down ? -1 : 1));
        body.append(...pairs.map(([, row]) => row));
      });
    });
  }

  // Filters: rows that hold every word.
  for (const table of document.querySelectorAll("table[data-filter]")) {
    const label = make("label", "Filter rows ", "filter");
    const input = make("input");
    const told = make("output");
    input.type = "search";
    input.setAttribute("aria-controls", table.id);
    label.append(input, told);
    table.closest(".table").prepend(label);
    const texts = new Map();
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of table.tBodies[0].rows) {
        if (!texts.has(row)) texts.set(row, [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase());
        row.hidden = !words.every((word) => texts.get(row).includes(word));
        shown += !row.hidden;
      }
      told.textContent = words.length ? ` ${shown} of ${table.tBodies[0].rows.length}` : "";
    });
  }

  // Records: what stands behind a number.
  const dialog = document.getElementById("record");
  const place = document.getElementById("record-body");
  let data = null;
  const whole = (differences) => { let sum = 0; return differences.map((one) => (sum += one)); };
  const list = (facts) => {
    const made = make("dl");
    for (const [name, value] of facts) made.append(make("dt", name), make("dd", value));
    return made;
  };
  // As flashladder/report/book.py packs them: values in this order, blocks as columns, one value for equal ones.
  const unpacked = ([process, seeds, unit, fa2, kernel, inputs, errors, blocks]) => {
    const rows = Math.max(1, ...blocks.filter(Array.isArray).map((column) => column.length));
    const times = (differences) => whole(differences).map((time) => time * unit);
    return { process, seeds, inputs, errors, fa2: times(fa2), kernel: times(kernel),
      blocks: Array.from({ length: rows }, (_, i) => blocks.map((column) => Array.isArray(column) ? column[i] : column)) };
  };
  const heads = ["block", "input", "first", "FA2, us", "kernel, us", "FA2 / kernel", "SM MHz", "W", "°C", "dropped"];
  const samples = (part, index) => {
    const table = make("table");
    const head = table.createTHead().insertRow();
    for (const title of heads) { const th = make("th", title); th.scope = "col"; head.append(th); }
    const body = table.createTBody();
    const { fa2, kernel } = part;
    let i = 0;
    for (const [block, count, kernelFirst, dropped, clock, power, temperature] of part.blocks) {
      for (let end = i + count; i < end; i++) {
        const row = body.insertRow();
        const cells = [block, part.inputs[i % part.inputs.length], kernelFirst ? "kernel" : "FA2", (fa2[i] / 1000).toFixed(3),
          (kernel[i] / 1000).toFixed(3), (fa2[i] / kernel[i]).toFixed(4), clock ?? "–", power ?? "–",
          temperature ?? "–", dropped || ""];
        for (const cell of cells) row.insertCell().textContent = cell;
        if (dropped) row.className = "dropped";
      }
    }
    const scroll = make("div", undefined, "scroll");
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "group");
    scroll.setAttribute("aria-label", `raw pairs, process ${part.process}`);
    scroll.append(table);
    const title = `Raw pairs of process ${part.process}: ${fa2.length}, in order; input seeds ${part.seeds.join(", ")}`;
    const box = make("details");
    box.open = index === 0;
    box.append(make("summary", title), scroll);
    return box;
  };
  const record = (number, alone) => {
    const one = data.records[number];
    const parts = (one.parts ?? []).map(unpacked);
    const made = make("article");
    const [name, code] = one.code < 0 ? ["", []] : data.codes[one.code];
    const title = one.parts ? `${name}, ${one.title}` : one.title;
    made.append(make("h3", title));
    const errors = parts.flatMap((part) => part.errors.flatMap((error, when) => error === null ? [] :
      [[`largest error ${when ? "after" : "before"} timing`, `${error[0]} (allowed ${error[1]})`]]));
    made.append(list([...(one.facts ?? []), ...errors, ...code, ...data.sources[one.source]]));
    if (alone) for (const [index, part] of parts.entries()) made.append(samples(part, index));
    if (alone || !one.parts) return made;
    const box = make("details");
    box.append(make("summary", `${title}: samples`));
    box.addEventListener("toggle", () => {
      if (box.childElementCount === 1) for (const [i, part] of parts.entries()) box.append(samples(part, i));
    });
    made.append(box);
    return made;
  };
  // Base64 of deflated JSON: flashladder.files.deflated.
  const stored = async () => {
    const bytes = Uint8Array.from(atob(document.getElementById("records").textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  };
  const ready = stored().then((found) => {
    data = found;
    document.documentElement.dataset.ready = "";  // a number that is clicked now is answered at once
  });
  document.addEventListener("click", async (event) => {
    const link = event.target.closest("a[data-p]");
    if (!link) return;
    event.preventDefault();
    if (!data) await ready;
    const numbers = link.dataset.p.split(",").map(Number);
    const several = numbers.length > 1 ? `${numbers.length} records` : "Record";
    document.getElementById("record-title").textContent = `${several} behind ${link.textContent.trim() || "this point"}`;
    place.replaceChildren(...numbers.map((number) => record(number, numbers.length === 1)));
    dialog.showModal();
    dialog.scrollTop = 0;
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

  // A link into something folded unfolds it.
  const unfold = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (target && target !== dialog) target.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  unfold();
})();
