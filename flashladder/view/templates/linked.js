// The linked view: rows of three texts, and what belongs together. All text is set as text; nothing is asked for.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const told = document.getElementById("told");
  const find = document.getElementById("find");
  const TEXTS = ["cuda", "ptx", "sass"];
  const opcode = (text) => text.replace(/^@\S+ /, "").split(/[\s;]/, 1)[0];
  const count = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

  // A row: its element knows kernel, text and place, so that one listener serves all.
  const row = (kernel, name, at, id, number, text, classes) => {
    const made = document.createElement("div");
    made.className = `row ${classes}`;
    made.id = id;
    made.setAttribute("role", "option");
    made.setAttribute("aria-selected", "false");
    const head = document.createElement("span");
    head.className = "n";
    head.textContent = number;
    made.append(head, text);
    Object.assign(made, { kernel, name, at });
    return made;
  };
  const heading = (text, className) => {
    const made = document.createElement("div");
    made.className = `row ${className}`;
    made.setAttribute("role", "presentation");
    made.textContent = text;
    return made;
  };
  const place = (file, line) => `${file}:${line}`;

  // What is packed is base64 of deflated JSON; a page of one or two kernels holds it plain.
  const whole = async (one) => {
    if (typeof one !== "string") return one;
    const bytes = Uint8Array.from(atob(one), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  };
  let files = [];
  const build = (head, facts, number) => {
    const kernel = { ...facts, head, number, of: new Map(), became: facts.ptx.map(() => []), rows: { cuda: new Map(), ptx: [], sass: [] } };
    facts.sass.forEach(([origin], index) => { if (origin >= 0) kernel.became[origin].push(index); });
    facts.ptx.forEach(([, chain], index) => {
      const lines = facts.chains[chain];
      for (const key of new Set(lines.map(([file, line]) => place(file, line)))) {
        if (!kernel.of.has(key)) kernel.of.set(key, []);
        kernel.of.get(key).push(index);
      }
    });
    const lists = Object.fromEntries(TEXTS.map((name) => [name, document.getElementById(`k${number}-${name}`)]));
    for (const name of TEXTS) lists[name].setAttribute("aria-label", `${data.texts[name]}, ${head.title}`);
    document.getElementById(`k${number}-title`).textContent = `${head.title}, ${head.arch}`;
    const digests = Object.entries(head.sha256).map(([name, digest]) => `SHA-256 of the ${name} ${digest.slice(0, 12)}…`);
    document.getElementById(`k${number}-told`).textContent = `${head.config}; ${count(head.ptx, "line", "lines")} of PTX, ` +
      `${head.lost.toLocaleString("en")} of them without machine code of their own; ${count(head.sass, "machine instruction", "machine instructions")}, ` +
      `${head.loop.toLocaleString("en")} in the main loop. ${digests.join(", ")}.`;
    const cuda = document.createDocumentFragment();
    for (const file of facts.files) {
      const [name, lines] = files[file];
      cuda.append(heading(name, "file"));
      const numbers = lines.length ? lines.map((_, index) => index + 1)
        : [...kernel.of.keys()].filter((key) => key.startsWith(`${file}:`)).map((key) => Number(key.split(":")[1])).sort((a, b) => a - b);
      for (const line of numbers) {
        const key = place(file, line);
        const made = row(kernel, "cuda", key, `k${number}-c-${file}-${line}`, line, lines[line - 1] ?? "", kernel.of.has(key) ? "" : "bare");
        kernel.rows.cuda.set(key, made);
        cuda.append(made);
      }
    }
    const ptx = document.createDocumentFragment();
    facts.ptx.forEach(([line, , text, label], index) => {
      if (label) ptx.append(heading(`${label}:`, "label"));
      const made = row(kernel, "ptx", index, `k${number}-p-${line}`, line, text, kernel.became[index].length ? "" : "bare");
      kernel.rows.ptx.push(made);
      ptx.append(made);
    });
    const sass = document.createDocumentFragment();
    const inside = new Set(facts.loop.flatMap(([first, last]) => Array.from({ length: last - first + 1 }, (_, i) => first + i)));
    const starts = new Map(facts.blocks.map((block, index) => [block[0], [index, block]]));
    facts.sass.forEach(([, text], index) => {
      const [block, [, label, region, after]] = starts.get(index) ?? [-1, []];
      const then = after?.length ? `, then ${after.join(" or ")}` : "";
      if (block >= 0) sass.append(heading(`${label ? `${label}: ` : ""}block ${block}, ${region}${then}`, "label"));
      const address = (index * 16).toString(16).padStart(4, "0");
      const made = row(kernel, "sass", index, `k${number}-s-${address}`, address, text, inside.has(index) ? "loop" : "");
      kernel.rows.sass.push(made);
      sass.append(made);
    });
    lists.cuda.replaceChildren(cuda);
    lists.ptx.replaceChildren(ptx);
    lists.sass.replaceChildren(sass);
    for (const name of TEXTS) lists[name].removeAttribute("aria-activedescendant");
    kernel.inside = inside;
    return kernel;
  };
  const slots = [null, null];
  let kernels = [];
  const put = async (slot, key) => {
    const head = data.kernels.find((one) => one.key === key);
    if (slots[slot]?.head === head) return;
    document.getElementById(`k${slot}`).hidden = !head;
    slots[slot] = head ? build(head, await whole(head.data), slot) : null;
    kernels = slots.filter(Boolean);
  };

  // What belongs to a row: the same place in every text, and the calls that lead there.
  const fromPtx = (kernel, indices) => ({ ptx: indices, sass: indices.flatMap((index) => kernel.became[index]) });
  const belonging = (chosen) => {
    const found = { hits: new Set(), calls: new Set(), ptx: 0, sass: [], chain: [] };
    const add = (kernel, { ptx, sass }) => {
      for (const index of ptx) found.hits.add(kernel.rows.ptx[index]);
      for (const index of sass) found.hits.add(kernel.rows.sass[index]);
      found.ptx += ptx.length;
      found.sass.push(...sass.map((index) => [kernel, index]));
    };
    for (const one of chosen) {
      found.hits.add(one);
      if (one.name === "cuda") {
        for (const kernel of kernels) {
          const same = kernel.rows.cuda.get(one.at);
          if (same) found.hits.add(same);
          add(kernel, fromPtx(kernel, kernel.of.get(one.at) ?? []));
        }
        continue;
      }
      const origin = one.name === "ptx" ? one.at : one.kernel.sass[one.at][0];
      if (origin < 0) { found.sass.push([one.kernel, one.at]); continue; }
      add(one.kernel, fromPtx(one.kernel, [origin]));
      const chain = one.kernel.chains[one.kernel.ptx[origin][1]];
      if (chosen.length === 1) found.chain = chain;
      chain.forEach(([file, line], depth) => {
        for (const kernel of kernels) {
          const same = kernel.rows.cuda.get(place(file, line));
          if (same && (kernel === one.kernel || depth === 0)) (depth ? found.calls : found.hits).add(same);
        }
      });
    }
    return found;
  };
  const nameOf = (one) => {
    if (one.name === "cuda") { const [file, line] = one.at.split(":"); return place(files[file][0], line); }
    return one.name === "ptx" ? `PTX line ${one.kernel.ptx[one.at][0]}` : `address ${one.id.split("-s-")[1]}`;
  };
  const describe = (what, found) => {
    const sass = [...new Map(found.sass.map(([kernel, index]) => [`${kernel.number}:${index}`, [kernel, index]])).values()];
    const classes = new Map();
    for (const [kernel, index] of sass) {
      const full = opcode(kernel.sass[index][1]);
      const name = data.lone.includes(full) ? full : full.split(".", 1)[0];
      classes.set(name, (classes.get(name) ?? 0) + 1);
    }
    const counted = [...classes].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([name, n]) => `${n} ${name}`);
    const inside = sass.filter(([kernel, index]) => kernel.inside.has(index)).length;
    const chain = found.chain.map(([file, line]) => place(files[file][0], line));
    return `${what}: ${count(found.ptx, "line of PTX", "lines of PTX")}, ${count(sass.length, "machine instruction", "machine instructions")}` +
      (counted.length ? ` (${counted.join(", ")}), ${inside.toLocaleString("en")} in the main loop` : "") +
      (chain.length ? `; from ${chain.join(" < ")}` : "");
  };

  const shown = { near: [], on: [], call: [] };
  const mark = (name, rows) => {
    for (const one of shown[name]) { one.classList.remove(name); if (name === "on") one.setAttribute("aria-selected", "false"); }
    shown[name] = [...rows];
    for (const one of shown[name]) { one.classList.add(name); if (name === "on") one.setAttribute("aria-selected", "true"); }
  };
  const near = (one) => mark("near", one ? belonging([one]).hits : []);
  const reveal = (one) => {
    const list = one.parentElement;
    const [top, bottom] = [one.offsetTop, one.offsetTop + one.offsetHeight];
    if (top < list.scrollTop || bottom > list.scrollTop + list.clientHeight) list.scrollTop = top - list.clientHeight / 2;
  };
  const activate = (one) => {
    const list = one.parentElement;
    list.querySelector(".active")?.classList.remove("active");
    one.classList.add("active");
    list.setAttribute("aria-activedescendant", one.id);
    reveal(one);
  };
  const choose = (rows, what) => {
    const found = belonging(rows);
    mark("near", []);
    mark("on", found.hits);
    mark("call", found.calls);
    told.textContent = rows.length ? describe(what, found) : what;
    const own = rows.length === 1 ? rows[0].parentElement : null;
    const first = new Map();
    for (const one of document.querySelectorAll(".row.on")) if (!first.has(one.parentElement)) first.set(one.parentElement, one);
    for (const [list, one] of first) if (list !== own) activate(one);
    if (own) activate(rows[0]);
    address(rows.length === 1 ? rows[0].id : "");
  };
  // The address names the kernels, where there is a choice, and the row: #7,8/k0-s-0040.
  const address = (row) => {
    const parts = [...(choices.length ? [kernels.map((kernel) => kernel.head.key).join(",")] : []), ...(row ? [row] : [])];
    try { history.replaceState(null, "", `#${parts.join("/")}`); } catch { /* a page from a disk may refuse */ }
  };
  const choices = [...document.querySelectorAll("select[data-slot]")];
  const letGo = () => { mark("near", []); choose([], "Nothing is chosen."); };

  const main = document.getElementById("main");
  main.addEventListener("mouseover", (event) => near(event.target.closest("[role=option]")));
  main.addEventListener("mouseleave", () => near(null));
  main.addEventListener("click", (event) => {
    const one = event.target.closest("[role=option]");
    if (one) choose([one], nameOf(one));
  });
  const lists = () => [...document.querySelectorAll(".rows")].filter((list) => !list.parentElement.hidden);
  const step = (list, active, key) => {
    const options = [...list.querySelectorAll("[role=option]")];
    const at = options.indexOf(active);
    const page = Math.max(1, Math.floor(list.clientHeight / (options[0]?.offsetHeight || 17)) - 1);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: options.length - 1, PageDown: at + page, PageUp: at - page }[key];
    return to === undefined ? null : options[Math.max(0, Math.min(options.length - 1, to))];
  };
  const neighbour = (list, active, side) => {
    const all = lists();
    const to = all[all.indexOf(list) + side];
    if (!to) return null;
    const hits = active ? belonging([active]).hits : new Set();
    return [...hits].find((one) => one.parentElement === to) ?? to.querySelector(".active") ?? to.querySelector("[role=option]");
  };
  main.addEventListener("keydown", (event) => {
    const list = event.target.closest(".rows");
    if (!list || event.altKey || event.ctrlKey || event.metaKey) return;
    const active = list.querySelector(".active");
    if (event.key === "Enter" || event.key === " ") { if (active) choose([active], nameOf(active)); }
    else if (event.key === "Escape") letGo();
    else {
      const side = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const to = side ? neighbour(list, active, side) : step(list, active, event.key);
      if (!to) return;
      activate(to);
      near(to);
      to.parentElement.focus({ preventScroll: true });
    }
    event.preventDefault();
  });

  // Find: FILE:LINE or FILE:FIRST-LAST in CUDA, an opcode in capitals in machine code, in small letters in PTX.
  const matching = (word) => {
    const lines = /^(.+):(\d+)(?:-(\d+))?$/.exec(word);
    const rows = kernels.flatMap((kernel) => {
      if (lines) {
        const [first, last] = [Number(lines[2]), Number(lines[3] ?? lines[2])];
        return [...kernel.rows.cuda].filter(([key]) => {
          const [file, line] = key.split(":");
          const name = files[file][0];
          return (name === lines[1] || name.endsWith(`/${lines[1]}`)) && line >= first && line <= last && kernel.of.has(key);
        }).map(([, one]) => one);
      }
      const name = word === word.toLowerCase() ? "ptx" : "sass";
      const at = name === "ptx" ? 2 : 1;
      return kernel.rows[name].filter((_, index) => { const found = opcode(kernel[name][index][at]); return found === word || found.startsWith(`${word}.`); });
    });
    return lines ? [...new Map(rows.map((one) => [one.at, one])).values()] : rows;
  };
  let hits = { word: "", rows: [], at: -1 };
  const search = () => {
    const word = find.value.trim();
    hits = { word, rows: word ? matching(word) : [], at: -1 };
    if (!word) letGo();
    else choose(hits.rows, hits.rows.length ? word : `${word}: nothing found`);
  };
  find.addEventListener("input", search);
  find.form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (find.value.trim() !== hits.word) search();
    if (!hits.rows.length) return;
    hits.at = (hits.at + 1) % hits.rows.length;
    activate(hits.rows[hits.at]);
  });
  for (const box of document.querySelectorAll("input[data-text]")) {
    box.addEventListener("change", () => {
      for (const text of document.querySelectorAll(`.text.${box.dataset.text}`)) text.hidden = !box.checked;
    });
  }
  for (const choice of choices) {
    choice.addEventListener("change", async () => {
      await put(Number(choice.dataset.slot), choice.value);
      letGo();
    });
  }
  const arrive = async () => {
    const parts = decodeURIComponent(location.hash.slice(1)).split("/");
    const known = new Set(data.kernels.map((one) => one.key));
    const asked = choices.length && !parts[0].startsWith("k") ? parts.shift().split(",").filter((key) => known.has(key)) : [];
    const keys = asked.length ? asked : data.kernels.slice(0, choices.length ? 1 : 2).map((one) => one.key);
    for (const slot of slots.keys()) {
      if (!document.getElementById(`k${slot}`)) continue;
      await put(slot, keys[slot] ?? "");
      if (choices.length) choices[slot].value = keys[slot] ?? "";
    }
    const row = parts[0] ? document.getElementById(parts[0]) : null;
    if (row?.kernel) choose([row], nameOf(row));
  };
  addEventListener("hashchange", arrive);
  whole(data.files).then((found) => { files = found; return arrive(); });
})();
