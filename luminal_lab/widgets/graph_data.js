// What of a graph is visible: groups that are closed, equal layers that are folded, search.

class Graph {
  constructor(data) {
    Object.assign(this, data);
    this.node = new Map(this.nodes.map((n) => [n.key, n]));
    this.group = new Map((this.groups ?? []).map((g) => [g.key, g]));
    this.inner = new Map(); // group -> nodes directly or deeper inside, own copy only
    for (const n of this.nodes)
      for (const g of this.around(n)) {
        if (!this.inner.has(g)) this.inner.set(g, []);
        this.inner.get(g).push(n);
      }
    this.order = new Map(this.nodes.map((n, k) => [n.key, k]));
    this.index = this.nodes.map((n) =>
      [n.label, n.sub, ...n.details.flat(), n.group].join("\n").toLowerCase());
    this.groupIndex = (this.groups ?? []).map((g) =>
      [g.key, g.label, ...g.details.flat()].join("\n").toLowerCase());
  }

  // The groups around a node, outermost first.
  around(n) {
    const path = [];
    for (let g = n.group; g; g = this.group.get(g)?.parent) path.unshift(g);
    return path;
  }

  total(group, key) {
    let sum = 0, seen = false;
    for (const n of this.inner.get(group) ?? [])
      if (n.values[key] != null) (sum += n.values[key]), (seen = true);
    return seen ? sum : null;
  }

  // The boxes and arrows to draw: a closed group is one box, equal layers are one.
  visible(open, folded) {
    const boxes = new Map(), owner = new Map(), frames = new Set();
    const hidden = (g) => folded && this.group.get(g)?.twin;
    for (const n of this.nodes) {
      const path = this.around(n);
      if (path.some(hidden)) continue;
      const closed = path.find((g) => !open.has(g));
      const key = closed ?? n.key;
      owner.set(n.key, key);
      for (const g of closed ? path.slice(0, path.indexOf(closed)) : path) frames.add(g);
      if (!boxes.has(key)) boxes.set(key, { key, node: closed ? null : n, group: closed ?? null,
        parent: closed ? this.group.get(closed).parent : n.group, at: boxes.size });
    }
    const arrows = new Map();
    for (const e of this.edges) {
      const tail = this.resolve(e.tail, owner), head = this.resolve(e.head, owner);
      if (!tail || !head || tail === head) continue;
      const through = !owner.has(e.tail) || !owner.has(e.head);
      if (through && boxes.get(tail).at >= boxes.get(head).at) continue; // layer to layer
      const key = `${tail}\u0000${head}`;
      const old = arrows.get(key);
      if (old) (old.titles.add(e.title), (old.dashed &&= e.dashed));
      else arrows.set(key, { tail, head, titles: new Set([e.title]), dashed: e.dashed });
    }
    return { boxes, arrows: [...arrows.values()], frames, owner };
  }

  resolve(key, owner) {
    for (let seen = 0; key && seen < 8; seen++) {
      if (owner.has(key)) return owner.get(key);
      key = this.node.get(key)?.twin;
    }
    return null;
  }

  find(words) {
    const parts = words.toLowerCase().split(/\s+/).filter(Boolean);
    if (!parts.length) return [];
    const hit = (text) => parts.every((p) => text.includes(p));
    const out = [];
    for (let k = 0; k < this.index.length; k++) if (hit(this.index[k])) out.push(this.nodes[k].key);
    return out;
  }
}

const quote = (s) => `"${String(s).replace(/["\\]/g, "\\$&").replace(/\n/g, "\\n")}"`;
