// The graph view: one component for programs, e-graphs and candidates.
//
// The model holds the whole graph as data; what is drawn is decided here: groups open and close,
// equal layers are folded, and no more than MAX_DRAWN boxes are drawn at once. Graphviz (compiled
// to WebAssembly) places them in a worker, so that the page stays alive while it thinks.

const MAX_DRAWN = 300;
const PATIENCE = 400; // ms; then a first picture is shown, placed without Graphviz
const FAR = 0.38; // below this scale text is too small to be read
const CHAR = 6.95, SUB = 6.35, PAD = 13, LINE = 15;

// -------------------------------------------------------------------------------- the view

class View {
  constructor(model, root) {
    this.model = model;
    this.root = root;
    this.open = new Set();
    this.folded = true;
    this.box = { x: 0, y: 0, k: 1 };
    this.overlay = "";
    this.hits = [];
    this.job = 0;
    this.build();
    this.load();
    this.listeners = [
      ["change:data", () => this.load()],
      ["change:selected", () => this.mark()],
      ["change:highlighted", () => this.mark()],
      ["change:height", () => this.resize()],
    ];
    for (const [name, f] of this.listeners) model.on(name, f);
  }

  destroy() {
    for (const [name, f] of this.listeners) this.model.off(name, f);
    this.observer?.disconnect();
  }

  build() {
    const button = (label, title, onclick) =>
      element("button", { type: "button", title, "aria-label": title, onclick }, label);
    this.search = element("input", {
      type: "search", placeholder: "Search ( / )", "aria-label": "Search the graph",
      oninput: () => this.find(), onkeydown: (e) => this.searchKey(e),
    });
    this.found = element("span", { class: "note", role: "status" });
    this.overlays = element("select", { "aria-label": "Colour by",
      onchange: () => ((this.overlay = this.overlays.value), this.paint()) });
    this.fold = element("input", { type: "checkbox", checked: true, onchange: () => {
      this.folded = this.fold.checked;
      this.draw();
    } });
    this.foldLabel = element("label", {}, this.fold, " fold equal layers");
    this.bar = element("div", { class: "bar", role: "toolbar", "aria-label": "Graph" },
      this.search, this.found,
      element("span", { class: "space" }),
      this.foldLabel,
      element("label", {}, "colour ", this.overlays),
      button("−", "Zoom out ( - )", () => this.zoom(1 / 1.25)),
      button("+", "Zoom in ( + )", () => this.zoom(1.25)),
      button("Fit", "Show everything ( 0 )", () => this.fit(true)),
      button("Open all", "Open all groups ( o )", () => this.openAll()),
      button("Close all", "Close all groups ( c )", () => this.closeAll()),
      button("Table", "Show the table of nodes ( t )", () => this.toggleTable()),
      this.exporter(),
    );
    this.svg = shape("svg", { class: "canvas", tabindex: "0", role: "application",
      "aria-describedby": "" });
    this.defs = shape("defs", {}, shape("marker", { id: `ll-tip-${View.n = (View.n ?? 0) + 1}`,
      viewBox: "0 0 8 8", refX: 7.5, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto",
      markerUnits: "userSpaceOnUse" },
      shape("path", { d: "M0 0.5 8 4 0 7.5z", class: "tip" })));
    this.tip = `url(#ll-tip-${View.n})`;
    this.world = shape("g");
    this.svg.append(this.defs, this.world);
    this.map = shape("svg", { class: "map", "aria-hidden": "true" });
    this.hover = element("div", { class: "hover", hidden: true });
    this.status = element("div", { class: "status", role: "status" });
    this.canvas = element("div", { class: "stage" }, this.svg, this.map, this.hover, this.status);
    this.side = element("aside", { class: "side", "aria-label": "Details", tabindex: "0" });
    this.table = element("div", { class: "rows", hidden: true, tabindex: "0",
      role: "region", "aria-label": "Table of nodes" });
    this.body = element("div", { class: "body" }, this.canvas, this.side);
    this.help = element("p", { class: "help" },
      "Arrows walk along edges, Enter opens or closes, / searches, + − 0 zoom, t shows the table, Esc clears.");
    this.root.append(element("div", { class: "ll ll-graph" }, this.bar, this.body, this.table,
      this.help));
    this.svg.addEventListener("keydown", (e) => this.key(e));
    this.svg.addEventListener("wheel", (e) => this.wheel(e), { passive: false });
    this.svg.addEventListener("pointerdown", (e) => this.drag(e));
    this.svg.addEventListener("dblclick", () => this.selectedBox()?.group && this.toggle());
    this.map.addEventListener("pointerdown", (e) => this.jump(e));
    this.observer = new ResizeObserver(() => (this.fitted && this.moved ? this.frame() : this.fit()));
    this.observer.observe(this.canvas);
    this.resize();
  }

  exporter() {
    const menu = element("select", { "aria-label": "Export", onchange: () => {
      const kind = menu.value;
      menu.value = "";
      if (kind) this.save(kind);
    } }, element("option", { value: "" }, "Export…"),
      ...["SVG", "PNG", "DOT", "JSON"].map((k) => element("option", { value: k }, k)));
    return menu;
  }

  resize() {
    this.canvas.style.height = this.side.style.maxHeight = `${this.model.get("height")}px`;
  }

  load() {
    const text = this.model.get("data");
    this.graph = new Graph(text ? JSON.parse(text) : { title: "", nodes: [], edges: [] });
    this.open = new Set(this.graph.open ?? []);
    this.svg.setAttribute("aria-label", `${this.graph.title}, ${this.graph.nodes.length} nodes. Arrow keys walk along edges, Enter opens or closes a group.`);
    this.overlays.replaceChildren(element("option", { value: "" }, "by kind"),
      ...(this.graph.overlays ?? []).map((o) => element("option", { value: o.key }, o.label)));
    const wanted = this.model.get("overlay");
    this.overlay = this.overlays.value = (this.graph.overlays ?? []).some((o) => o.key === wanted) ? wanted : "";
    this.foldLabel.hidden = !(this.graph.groups ?? []).some((g) => g.twin);
    this.search.value = "";
    this.found.textContent = "";
    this.hits = [];
    this.fitted = this.moved = false; // moved: by the user, who wants to stay there
    this.rows = null;
    this.draw();
    if (!this.table.hidden) this.list();
  }

  // ------------------------------------------------------------------------- drawing

  async draw() {
    const job = ++this.job;
    let shown = this.graph.visible(this.open, this.folded);
    const all = shown.boxes.size;
    let note = "";
    if (all > MAX_DRAWN) {
      const kept = new Set([...shown.boxes.keys()].slice(0, MAX_DRAWN));
      for (const k of [...shown.boxes.keys()]) if (!kept.has(k)) shown.boxes.delete(k);
      shown.arrows = shown.arrows.filter((a) => kept.has(a.tail) && kept.has(a.head));
      note = `showing ${MAX_DRAWN} of ${all.toLocaleString("en")} boxes: close groups, or search; the table has all`;
    }
    for (const b of shown.boxes.values()) this.measure(b);
    const tell = (text) => this.tell([note, text].filter(Boolean).join("; "));
    tell("placing…");
    const early = this.drawn ? null : setTimeout(() => {
      if (job !== this.job) return;
      this.show(shown, plain(shown));
      this.fitted = false; // Graphviz's drawing is fitted again
    }, PATIENCE);
    let placed, failed = "";
    try {
      const names = new Map(); // Graphviz sees our names, never a model's
      placed = read(await place(this.model, this.dot(shown, names)), names);
    } catch (error) {
      placed = plain(shown);
      failed = `drawn without Graphviz (${error.message})`;
    }
    clearTimeout(early);
    if (job !== this.job) return; // a newer drawing is on its way
    const total = this.graph.nodes.length;
    const summary = `${shown.boxes.size.toLocaleString("en")} boxes for ${total.toLocaleString("en")} nodes`;
    tell(failed || (note ? "" : summary));
    this.show(shown, placed);
  }

  show(shown, placed) {
    this.shown = shown;
    this.placed = placed;
    this.render();
    if (!this.fitted) this.fit();
    else this.frame();
    this.model.set("drawn", shown.boxes.size);
    this.model.save_changes();
  }

  tell(text) {
    this.status.textContent = text;
  }

  measure(b) {
    const g = b.group && this.graph.group.get(b.group);
    const times = g && g.copies > 1 && this.folded ? ` ×${g.copies}` : "";
    b.label = g ? `▸ ${g.label}${times}` : b.node.label;
    const inside = g ? (this.graph.inner.get(g.key) ?? []).length : 0;
    b.sub = g ? `${inside.toLocaleString("en")} node${inside === 1 ? "" : "s"}` : b.node.sub;
    b.kind = g ? "group" : b.node.kind;
    const width = Math.max(b.label.length * CHAR, b.sub.length * SUB) + 2 * PAD;
    b.w = Math.max(44, Math.min(width, 380));
    b.h = LINE * (b.sub ? 2 : 1) + 12;
  }

  // The drawing as DOT: for Graphviz to place (boxes of our sizes, names noted) or to save.
  dot(shown, names = null) {
    const sized = names !== null;
    const id = new Map([...shown.boxes.keys()].map((k, i) => [k, `b${i}`]));
    const lines = ["digraph {", ' graph [rankdir=TB nodesep=0.22 ranksep=0.34 splines=true]',
      " node [shape=box]"];
    const children = new Map();
    const into = (g) => children.get(g) ?? children.set(g, { groups: [], boxes: [] }).get(g);
    into("");
    for (const g of this.graph.groups ?? [])
      if (shown.frames.has(g.key)) into(g.parent).groups.push(g);
    for (const b of shown.boxes.values()) into(b.parent || "").boxes.push(b);
    let n = 0;
    const write = (g, indent) => {
      const here = children.get(g) ?? { groups: [], boxes: [] };
      for (const b of here.boxes) {
        const size = sized ? `width=${(b.w / 72).toFixed(3)} height=${(b.h / 72).toFixed(3)} fixedsize=true label=""` : `label=${quote(b.sub ? `${b.label}\n${b.sub}` : b.label)}`;
        names?.set(id.get(b.key), b.key);
        lines.push(`${indent}${id.get(b.key)} [${size}]`);
      }
      for (const inner of here.groups) {
        names?.set(`cluster_${n}`, inner.key);
        lines.push(`${indent}subgraph cluster_${n++} { label=${quote(sized ? "x".repeat(Math.min(inner.label.length + 2, 40)) : inner.label)} fontsize=10 margin=10`);
        write(inner.key, indent + " ");
        lines.push(`${indent}}`);
      }
    };
    write("", " ");
    for (const a of shown.arrows) lines.push(` ${id.get(a.tail)} -> ${id.get(a.head)}`);
    lines.push("}");
    return lines.join("\n");
  }

  render() {
    const { shown, placed } = this;
    const frames = shape("g"), edges = shape("g"), boxes = shape("g");
    for (const [key, f] of placed.frames) {
      const g = this.graph.group.get(key);
      const times = g.copies > 1 && this.folded ? ` ×${g.copies}` : "";
      const frame = shape("g", { class: "gframe", "data-group": key },
        shape("rect", { x: f.x, y: f.y, width: f.w, height: f.h, rx: 8 }),
        shape("text", { x: f.x + 10, y: f.y + 15 }, `▾ ${g.label}${times}`));
      frame.querySelector("text").addEventListener("click", () => {
        this.open.delete(key);
        this.draw();
      });
      frames.append(frame);
    }
    this.lines = [];
    for (const a of shown.arrows) {
      const path = placed.paths.get(`${a.tail}\u0000${a.head}`);
      if (!path) continue;
      const line = shape("path", { d: path, class: `edge${a.dashed ? " dash" : ""}`,
        "marker-end": this.tip });
      const said = [...a.titles].filter(Boolean).join("\n");
      if (said) line.append(shape("title", {}, said));
      edges.append(line);
      this.lines.push([a, line]);
    }
    this.drawn = new Map();
    for (const b of shown.boxes.values()) {
      const p = placed.at.get(b.key);
      if (!p) continue;
      b.x = p.x;
      b.y = p.y;
      const cut = (s, advance) => {
        const room = Math.floor((b.w - 2 * PAD + 4) / advance);
        return s.length > room ? s.slice(0, room - 1) + "…" : s;
      };
      const node = shape("g", { class: `node k-${b.kind || "plain"}`, role: "button",
        "aria-label": `${b.label}, ${b.sub}`, "data-key": b.key,
        transform: `translate(${p.x - b.w / 2} ${p.y - b.h / 2})` },
        shape("rect", { class: "box", width: b.w, height: b.h, rx: 6 }),
        shape("rect", { class: "tone", width: 4, height: b.h, rx: 2 }),
        shape("rect", { class: "amount", x: 4, y: b.h - 3, width: 0, height: 3 }),
        shape("text", { x: PAD, y: 16, class: "b" }, cut(b.label, CHAR)),
        b.sub ? shape("text", { x: PAD, y: 31, class: "sub" }, cut(b.sub, SUB)) : null);
      node.addEventListener("pointerenter", (e) => this.peek(b, e));
      node.addEventListener("pointerleave", () => (this.hover.hidden = true));
      node.addEventListener("click", () => this.select(b.key));
      boxes.append(node);
      this.drawn.set(b.key, { b, node });
    }
    this.world.replaceChildren(frames, edges, boxes);
    this.map.replaceChildren(...[...this.drawn.values()].map(({ b }) =>
      shape("rect", { x: b.x - b.w / 2, y: b.y - b.h / 2, width: b.w, height: b.h })),
      (this.lens = shape("rect", { class: "lens" })));
    this.map.setAttribute("viewBox", `0 0 ${placed.w} ${placed.h}`);
    this.paint();
    this.mark();
  }

  // The overlay: the length of the bar under a box, the number in words, and the depth of colour.
  paint() {
    const overlay = (this.graph.overlays ?? []).find((o) => o.key === this.overlay);
    const value = ({ b }) => !overlay ? null
      : b.group ? this.graph.total(b.group, overlay.key) : b.node.values[overlay.key] ?? null;
    const known = [...this.drawn.values()].map(value).filter((v) => v != null);
    const most = Math.max(...known, 0);
    for (const one of this.drawn.values()) {
      const v = value(one), { b, node } = one;
      const share = v != null && most > 0 ? v / most : 0;
      node.querySelector(".amount").setAttribute("width", Math.max(0, (b.w - 4) * share));
      const box = node.querySelector(".box");
      box.style.fill = share ? `color-mix(in oklab, var(--surface), var(--warn) ${Math.round(8 + 34 * share)}%)` : "";
      const sub = node.querySelector(".sub");
      if (sub) sub.textContent = v != null ? spell(v, overlay.unit) : b.sub.slice(0, Math.floor((b.w - 2 * PAD + 4) / SUB));
    }
    if (this.model.get("overlay") !== this.overlay) {
      this.model.set("overlay", this.overlay);
      this.model.save_changes();
    }
  }

  // ----------------------------------------------------------------------- selection

  mark() {
    if (!this.drawn) return;
    const chosen = this.owner(this.model.get("selected"));
    const lit = new Set(this.model.get("highlighted").map((k) => this.owner(k)));
    const hits = new Set(this.hits.map((k) => this.owner(k)));
    for (const [key, { node }] of this.drawn) {
      node.classList.toggle("chosen", key === chosen);
      node.classList.toggle("lit", lit.has(key));
      node.classList.toggle("hit", hits.has(key));
      node.setAttribute("aria-pressed", key === chosen);
    }
    for (const [a, line] of this.lines)
      line.classList.toggle("near", a.tail === chosen || a.head === chosen);
    this.details();
  }

  owner(key) {
    if (!key || !this.shown) return null;
    return this.shown.boxes.has(key) ? key : this.graph.resolve(key, this.shown.owner);
  }

  selectedBox() {
    return this.drawn?.get(this.owner(this.model.get("selected")))?.b;
  }

  select(key, bring = false) {
    this.model.set("selected", key);
    this.model.save_changes();
    this.mark();
    if (bring) this.bring(key);
    const b = this.selectedBox();
    if (b) this.say(`${b.label}, ${b.sub}`);
  }

  say(text) {
    this.found.textContent = text.length > 60 ? text.slice(0, 59) + "…" : text;
  }

  details() {
    const key = this.model.get("selected");
    const thing = this.graph.node.get(key) ?? this.graph.group.get(key);
    const near = [];
    if (!thing) {
      this.side.replaceChildren(element("h4", {}, this.graph.title || "Graph"),
        element("p", { class: "muted" }, "Select a box to see what it is, what it reads and who reads it."));
      return;
    }
    const rows = thing.details.flatMap(([k, v]) => [element("dt", {}, k), element("dd", {}, v)]);
    for (const o of this.graph.overlays ?? []) {
      const v = this.graph.node.has(key) ? thing.values[o.key] : this.graph.total(key, o.key);
      if (v != null) rows.push(element("dt", {}, o.label), element("dd", {}, spell(v, o.unit)));
    }
    const box = this.drawn?.get(this.owner(key))?.b;
    if (box) {
      const name = (k) => this.drawn.get(k)?.b.label;
      const list = (title, keys) => keys.length && near.push(element("h5", {}, title),
        element("ul", {}, ...keys.slice(0, 12).map((k) => element("li", {},
          element("button", { type: "button", class: "link", onclick: () => this.select(k, true) },
            name(k) ?? k)))));
      list("reads", this.shown.arrows.filter((a) => a.head === box.key).map((a) => a.tail));
      list("is read by", this.shown.arrows.filter((a) => a.tail === box.key).map((a) => a.head));
    }
    const action = this.graph.group.has(key)
      ? element("button", { type: "button", onclick: () => this.toggle() },
          this.open.has(key) ? "Close group" : "Open group") : null;
    this.side.replaceChildren(element("h4", {}, thing.label), element("dl", {}, ...rows),
      ...(action ? [action] : []), ...near);
  }

  peek(b, event) {
    const thing = b.node ?? this.graph.group.get(b.group);
    const wanted = new Set(["dtype", "shape", "result", "work", "op", "module", "nodes", "what", "", "made by", "source"]);
    const lines = thing.details.filter(([k]) => wanted.has(k)).slice(0, 7)
      .map(([k, v]) => element("div", {}, k ? element("b", {}, `${k} `) : null, v));
    this.hover.replaceChildren(element("strong", {}, b.label), ...lines);
    this.hover.hidden = false;
    const r = this.canvas.getBoundingClientRect();
    const x = Math.min(event.clientX - r.left + 14, r.width - this.hover.offsetWidth - 8);
    const y = Math.min(event.clientY - r.top + 14, r.height - this.hover.offsetHeight - 8);
    this.hover.style.transform = `translate(${Math.max(4, x)}px, ${Math.max(4, y)}px)`;
  }

  toggle() {
    const key = this.model.get("selected");
    const g = this.graph.group.has(key) ? key : this.graph.node.get(key)?.group;
    if (!g) return;
    if (this.open.has(g)) {
      this.open.delete(g);
      this.model.set("selected", g);
      this.model.save_changes();
    } else this.open.add(g);
    this.draw().then(() => this.bring(this.model.get("selected"), false));
  }

  openAll() {
    this.open = new Set(this.graph.group.keys());
    this.fitted = false;
    this.draw();
  }

  closeAll() {
    this.open = new Set(this.graph.open ?? []);
    this.fitted = false;
    this.draw();
  }

  // -------------------------------------------------------------------------- search

  find() {
    const started = performance.now();
    this.hits = this.graph.find(this.search.value);
    this.hitAt = -1;
    const seconds = performance.now() - started;
    this.found.textContent = !this.search.value ? "" : this.hits.length
      ? `${this.hits.length.toLocaleString("en")} found in ${seconds.toFixed(0)} ms; Enter: next`
      : "nothing found";
    this.mark();
    if (!this.table.hidden) this.list();
  }

  searchKey(e) {
    if (e.key === "Escape") {
      this.search.value = "";
      this.find();
      this.svg.focus();
    } else if (e.key === "Enter" && this.hits.length) {
      const step = e.shiftKey ? this.hits.length - 1 : 1;
      this.hitAt = (this.hitAt + step + (this.hitAt < 0 && e.shiftKey ? 1 : 0)) % this.hits.length;
      this.reveal(this.hits[this.hitAt]);
      this.found.textContent = `${this.hitAt + 1} of ${this.hits.length}`;
    } else return;
    e.preventDefault();
    e.stopPropagation();
  }

  // Open what is around a node, select it and move there.
  async reveal(key) {
    let n = this.graph.node.get(key);
    if (n && this.folded && n.twin && this.graph.around(n).some((g) => this.graph.group.get(g)?.twin))
      n = this.graph.node.get(n.twin) ?? n;
    if (!n) return this.select(key, true);
    let changed = false;
    for (const g of this.graph.around(n)) if (!this.open.has(g)) (this.open.add(g), (changed = true));
    if (changed) await this.draw();
    this.select(n.key, true);
  }

  // ------------------------------------------------------------------------ keyboard

  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const walk = { ArrowDown: "down", ArrowUp: "up", ArrowLeft: "left", ArrowRight: "right" }[e.key];
    if (walk) this.walk(walk);
    else if (e.key === "Enter" || e.key === " ") this.toggle();
    else if (e.key === "/") this.search.focus();
    else if (e.key === "+" || e.key === "=") this.zoom(1.25);
    else if (e.key === "-") this.zoom(1 / 1.25);
    else if (e.key === "0") this.fit(true);
    else if (e.key === "o") this.openAll();
    else if (e.key === "c") this.closeAll();
    else if (e.key === "t") this.toggleTable();
    else if (e.key === "Escape") {
      this.hits = [];
      this.search.value = "";
      this.select("");
    } else return;
    e.preventDefault();
    e.stopPropagation();
  }

  walk(way) {
    const from = this.selectedBox();
    const all = [...(this.drawn?.values() ?? [])].map(({ b }) => b);
    if (!all.length) return;
    if (!from) return this.select(all.reduce((a, b) => (b.y < a.y || (b.y === a.y && b.x < a.x) ? b : a)).key, true);
    const nearest = (boxes, far) => boxes.reduce((a, b) => (!a || far(b) < far(a) ? b : a), null);
    let next;
    if (way === "down" || way === "up") {
      const [mine, other] = way === "down" ? ["tail", "head"] : ["head", "tail"];
      const joined = this.shown.arrows.filter((a) => a[mine] === from.key).map((a) => this.drawn.get(a[other])?.b);
      next = nearest(joined.filter(Boolean), (b) => Math.abs(b.x - from.x) + Math.abs(b.y - from.y));
    } else {
      const sign = way === "right" ? 1 : -1;
      next = nearest(all.filter((b) => (b.x - from.x) * sign > 0.5),
        (b) => Math.abs(b.x - from.x) + 6 * Math.abs(b.y - from.y));
    }
    if (next) this.select(next.key, true);
  }

  // ---------------------------------------------------------------------- pan and zoom

  frame() {
    if (!this.placed) return;
    this.world.setAttribute("transform", `translate(${this.box.x} ${this.box.y}) scale(${this.box.k})`);
    const { width, height } = this.canvas.getBoundingClientRect();
    const { x, y, k } = this.box;
    // Text is laid out anew at each scale: what cannot be read or is outside is left out.
    this.svg.classList.toggle("far", k < FAR);
    for (const { b, node } of this.drawn.values()) {
      const left = (b.x - b.w / 2) * k + x, up = (b.y - b.h / 2) * k + y;
      const off = left > width || up > height || left + b.w * k < 0 || up + b.h * k < 0;
      if (off !== node.off) node.classList.toggle("off", (node.off = off));
    }
    this.map.toggleAttribute("hidden", this.placed.w * k <= width && this.placed.h * k <= height);
    for (const [a, v] of Object.entries({ x: -x / k, y: -y / k, width: width / k, height: height / k }))
      this.lens?.setAttribute(a, v);
  }

  soon() {
    this.asked ??= requestAnimationFrame(() => {
      this.asked = null;
      this.frame();
    });
  }

  // Show everything, or what is highlighted where everything would be too small to read.
  fit(all = false) {
    if (!this.placed) return;
    const { width, height } = this.canvas.getBoundingClientRect();
    if (!width) return; // in a hidden tab: it is fitted when it is shown
    this.fitted = true;
    this.moved = false;
    const k = Math.min(1.1, (width - 24) / this.placed.w, Math.max((height - 40) / this.placed.h, 0.75));
    const wide = Math.max(k, 0.3); // a drawing that is still too wide starts at its left edge
    this.box = { k: wide, x: Math.max(12, (width - this.placed.w * wide) / 2),
      y: Math.max(12, (height - this.placed.h * wide) / 2) };
    const lit = all || wide >= FAR ? null : this.model.get("highlighted")
      .map((key) => this.drawn?.get(this.owner(key))?.b).find(Boolean);
    if (lit) this.box = { k: 0.75, x: width / 2 - lit.x * 0.75, y: height / 2 - lit.y * 0.75 };
    this.frame();
  }

  zoom(by, at) {
    this.moved = true;
    const r = this.canvas.getBoundingClientRect();
    const c = at ?? { x: r.width / 2, y: r.height / 2 };
    const k = Math.min(4, Math.max(0.05, this.box.k * by));
    const f = k / this.box.k;
    this.box = { k, x: c.x - (c.x - this.box.x) * f, y: c.y - (c.y - this.box.y) * f };
    this.soon();
  }

  wheel(e) {
    if (!(e.ctrlKey || e.metaKey || document.activeElement === this.svg)) return; // the page scrolls
    e.preventDefault();
    const r = this.canvas.getBoundingClientRect();
    this.zoom(Math.exp(-e.deltaY * 0.0016), { x: e.clientX - r.left, y: e.clientY - r.top });
  }

  drag(e) {
    if (e.button) return;
    this.svg.focus({ preventScroll: true });
    const start = { x: e.clientX - this.box.x, y: e.clientY - this.box.y };
    const move = (m) => {
      this.moved = true;
      this.box.x = m.clientX - start.x;
      this.box.y = m.clientY - start.y;
      this.soon();
    };
    const done = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", done);
      removeEventListener("pointercancel", done);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", done);
    addEventListener("pointercancel", done);
  }

  jump(e) {
    const r = this.map.getBoundingClientRect(), c = this.canvas.getBoundingClientRect();
    const s = Math.min(r.width / this.placed.w, r.height / this.placed.h);
    const x = (e.clientX - r.left - (r.width - this.placed.w * s) / 2) / s;
    const y = (e.clientY - r.top - (r.height - this.placed.h * s) / 2) / s;
    this.moved = true;
    this.box.x = c.width / 2 - x * this.box.k;
    this.box.y = c.height / 2 - y * this.box.k;
    this.frame();
  }

  bring(key, always = true) {
    const b = this.drawn?.get(this.owner(key))?.b;
    if (!b) return;
    const { width, height } = this.canvas.getBoundingClientRect();
    const x = b.x * this.box.k + this.box.x, y = b.y * this.box.k + this.box.y;
    const inside = x > 40 && x < width - 40 && y > 16 && y < height - 16;
    if (inside && !(always && this.box.k < 0.4)) return;
    if (this.box.k < 0.4) this.box.k = 0.8;
    this.moved = true;
    this.box.x = width / 2 - b.x * this.box.k;
    this.box.y = height / 2 - b.y * this.box.k;
    this.frame();
  }

  // --------------------------------------------------------------------------- table

  toggleTable() {
    this.table.hidden = !this.table.hidden;
    if (!this.table.hidden) this.list();
  }

  list() {
    const searching = Boolean(this.search.value);
    const keys = searching ? this.hits : this.graph.nodes.map((n) => n.key);
    const shown = keys.slice(0, 200);
    const overlays = this.graph.overlays ?? [];
    const head = ["node", "type", "group", ...overlays.map((o) => o.label)];
    const rows = shown.map((key) => {
      const n = this.graph.node.get(key);
      return element("tr", {},
        element("td", {}, element("button", { type: "button", class: "link",
          onclick: () => this.reveal(key) }, n.label)),
        element("td", {}, n.sub), element("td", {}, n.group),
        ...overlays.map((o) => element("td", { class: "num" },
          n.values[o.key] != null ? spell(n.values[o.key], o.unit) : "–")));
    });
    const caption = keys.length > shown.length
      ? `showing ${shown.length} of ${keys.length.toLocaleString("en")}; search to narrow it down`
      : `${keys.length.toLocaleString("en")} nodes`;
    this.table.replaceChildren(element("table", {}, element("caption", {}, caption),
      element("thead", {}, element("tr", {}, ...head.map((h) => element("th", { scope: "col" }, h)))),
      element("tbody", {}, ...rows)));
  }

  // -------------------------------------------------------------------------- export

  picture() {
    const copy = this.svg.cloneNode(true);
    const { w, h } = this.placed;
    copy.setAttribute("xmlns", SVG);
    copy.setAttribute("viewBox", `-8 -8 ${w + 16} ${h + 16}`);
    copy.setAttribute("width", w + 16);
    copy.setAttribute("height", h + 16);
    copy.setAttribute("class", "ll");
    copy.querySelector("defs + g").removeAttribute("transform");
    const palette = getComputedStyle(this.root.firstChild);
    const names = ["bg", "surface", "soft", "line", "fg", "muted", "accent", "good", "warn", "bad", "purple", "teal"];
    const values = names.map((n) => `--${n}:${palette.getPropertyValue(`--${n}`)}`).join(";");
    const scheme = palette.colorScheme || "light";
    copy.insertBefore(shape("style", {}, `.ll{${values};color-scheme:${scheme}}${this.model.get("svg_css")}`), copy.firstChild);
    return new XMLSerializer().serializeToString(copy);
  }

  async save(kind) {
    const name = (this.graph.title || "graph").replace(/[^\w-]+/g, "-").replace(/^-+|-+$/g, "").toLowerCase();
    const give = (blob, ext) => {
      const link = element("a", { href: URL.createObjectURL(blob), download: `${name}.${ext}` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    };
    if (kind === "DOT") give(new Blob([this.dot(this.shown)], { type: "text/vnd.graphviz" }), "dot");
    if (kind === "JSON") give(new Blob([this.model.get("data")], { type: "application/json" }), "json");
    if (kind === "SVG") give(new Blob([this.picture()], { type: "image/svg+xml" }), "svg");
    if (kind === "PNG") {
      const image = new Image();
      image.src = URL.createObjectURL(new Blob([this.picture()], { type: "image/svg+xml" }));
      await image.decode();
      const scale = Math.min(2, 8000 / Math.max(image.width, image.height));
      const canvas = element("canvas", { width: image.width * scale, height: image.height * scale });
      const pen = canvas.getContext("2d");
      pen.fillStyle = getComputedStyle(this.root.firstChild).backgroundColor || "#fff";
      pen.fillRect(0, 0, canvas.width, canvas.height);
      pen.scale(scale, scale);
      pen.drawImage(image, 0, 0);
      canvas.toBlob((blob) => give(blob, "png"));
    }
    this.say(`${kind} saved`);
  }
}

export default {
  render({ model, el }) {
    const view = new View(model, el);
    return () => view.destroy();
  },
};
