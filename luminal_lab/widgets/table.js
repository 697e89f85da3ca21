// A table that sorts, filters, pins and selects. Rows are plain data; what is shown is decided here.

const SHOWN = 400;

class Table {
  constructor(model, root) {
    this.model = model;
    this.root = root;
    this.sort = null; // [column key, descending]
    this.filter = element("input", { type: "search", placeholder: "Filter",
      "aria-label": `Filter ${model.get("label")}`, oninput: () => this.draw() });
    this.note = element("span", { class: "note", role: "status" });
    this.body = element("div", { class: "rows", tabindex: "0", role: "region",
      "aria-label": model.get("label"), onkeydown: (e) => this.key(e) });
    root.append(element("div", { class: "ll ll-table" },
      element("div", { class: "bar" }, this.filter, this.note), this.body));
    this.listeners = ["rows", "columns", "selected", "pinned", "height"].map((n) => [`change:${n}`, () => this.draw()]);
    this.listeners.push(["change:marked", () => this.mark()]);
    for (const [name, f] of this.listeners) model.on(name, f);
    this.draw();
  }

  destroy() {
    for (const [name, f] of this.listeners) this.model.off(name, f);
  }

  visible() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const columns = this.model.get("columns");
    let rows = this.model.get("rows").filter((r) => {
      const text = columns.map((c) => this.spell(r, c)).join(" ").toLowerCase();
      return words.every((w) => text.includes(w));
    });
    if (this.sort) {
      const [key, down] = this.sort;
      const value = (r) => r[key];
      const order = (a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x == null || y == null) return (x == null) - (y == null); // unknown comes last
        return (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y))) * (down ? -1 : 1);
      };
      rows = [...rows].sort(order);
    }
    const pinned = new Set(this.model.get("pinned"));
    return [...rows.filter((r) => pinned.has(r.key)), ...rows.filter((r) => !pinned.has(r.key))];
  }

  spell(row, column) {
    const v = row[column.key];
    if (v == null) return "–";
    return column.unit ? spell(v, column.unit) : typeof v === "number" ? v.toLocaleString("en") : String(v);
  }

  draw() {
    const columns = this.model.get("columns"), rows = this.visible();
    const selected = this.model.get("selected"), pinned = new Set(this.model.get("pinned"));
    const head = columns.map((c) => {
      const way = this.sort?.[0] === c.key ? (this.sort[1] ? "descending" : "ascending") : "none";
      return element("th", { scope: "col", class: c.unit || c.number ? "num" : null, "aria-sort": way },
        element("button", { type: "button", class: "link", onclick: () => this.order(c.key) },
          c.label + { none: "", ascending: " ▲", descending: " ▼" }[way]));
    });
    this.shown = rows.slice(0, SHOWN);
    const body = this.shown.map((r) => element("tr", { "data-key": r.key, tabindex: "-1",
      "aria-selected": String(r.key === selected), class: r.key === selected ? "mark" : null,
      onclick: () => this.choose(r.key) },
      element("td", {}, element("button", { type: "button", class: "pin", "aria-pressed": String(pinned.has(r.key)),
        "aria-label": `Pin row ${r.key}`, title: "Keep this row on top",
        onclick: (e) => (e.stopPropagation(), this.pin(r.key)) }, pinned.has(r.key) ? "★" : "☆")),
      ...columns.map((c) => element("td", { class: [c.unit || c.number ? "num" : "", c.code ? "code" : "", r[`${c.key}_tone`] ?? ""].join(" ") },
        this.spell(r, c)))));
    this.body.style.maxHeight = `${this.model.get("height")}px`;
    this.body.replaceChildren(element("table", {},
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, element("span", { class: "hide" }, "pinned")), ...head)),
      element("tbody", {}, ...body)));
    this.light();
    const all = this.model.get("rows").length;
    const said = (n) => `${n.toLocaleString("en")} row${n === 1 ? "" : "s"}`;
    this.note.textContent = rows.length > SHOWN ? `showing ${SHOWN} of ${rows.length.toLocaleString("en")} rows`
      : rows.length < all ? `${rows.length.toLocaleString("en")} of ${all.toLocaleString("en")} rows` : said(all);
  }

  light() {
    const marked = new Set(this.model.get("marked"));
    for (const row of this.body.querySelectorAll("tr[data-key]")) row.classList.toggle("linked", marked.has(row.dataset.key));
  }

  mark() {
    this.light();
    const row = this.body.querySelector("tr.linked");
    if (!row) return; // within the table only: the page stays where it is
    const [top, bottom] = [row.offsetTop, row.offsetTop + row.offsetHeight];
    if (top < this.body.scrollTop + 32 || bottom > this.body.scrollTop + this.body.clientHeight) this.body.scrollTop = top - 40;
  }

  order(key) {
    this.sort = this.sort?.[0] === key ? (this.sort[1] ? null : [key, true]) : [key, false];
    this.draw();
  }

  choose(key) {
    this.model.set("selected", key);
    this.model.save_changes();
  }

  pin(key) {
    const pinned = this.model.get("pinned");
    this.model.set("pinned", pinned.includes(key) ? pinned.filter((k) => k !== key) : [...pinned, key]);
    this.model.save_changes();
  }

  key(e) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (step && e.target === this.body) {
      const at = this.shown.findIndex((r) => r.key === this.model.get("selected"));
      const next = this.shown[Math.max(0, Math.min(this.shown.length - 1, at + step))];
      if (next) {
        this.choose(next.key);
        this.body.querySelector("tr.mark")?.scrollIntoView({ block: "nearest" });
      }
    } else if (e.key === "p" && e.target === this.body && this.model.get("selected")) this.pin(this.model.get("selected"));
    else if (e.key === "/" && e.target === this.body) this.filter.focus();
    else return;
    e.preventDefault();
    e.stopPropagation();
  }
}

export default {
  render({ model, el }) {
    const table = new Table(model, el);
    return () => table.destroy();
  },
};
