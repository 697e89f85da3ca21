// Where the boxes go: Graphviz in a worker, and a plain placement for when it fails.

const LAYOUT_MS = 5000; // then the plain placement is drawn instead

// ------------------------------------------------------------------------- Graphviz, apart

// One worker for all views of a page. Its library comes from the kernel once, through the first
// view's connection, and is kept for the page's life.
const page = (globalThis.__luminalLab ??= { library: null, worker: null, jobs: new Map(), n: 0 });

function library(model) {
  page.library ??= new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      page.library = null;
      reject(new Error("the kernel does not answer"));
    }, 4000);
    const listen = (message, buffers) => {
      if (message?.type !== "library") return;
      model.off("msg:custom", listen);
      clearTimeout(timer);
      const text = new TextDecoder().decode(buffers[0]);
      resolve(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
    };
    model.on("msg:custom", listen);
    model.send({ type: "library" });
  });
  return page.library;
}

const WORKER = (url) => `
import { Graphviz } from ${JSON.stringify(url)};
const ready = Graphviz.load();
self.onmessage = async ({ data: { id, dot } }) => {
  try { self.postMessage({ id, json: (await ready).layout(dot, "json", "dot") }); }
  catch (error) { self.postMessage({ id, error: String(error) }); }
};`;

async function place(model, dot) {
  const url = await library(model);
  if (!page.worker) {
    const source = new Blob([WORKER(url)], { type: "text/javascript" });
    page.worker = new Worker(URL.createObjectURL(source), { type: "module" });
    page.worker.onmessage = ({ data }) => {
      const job = page.jobs.get(data.id);
      page.jobs.delete(data.id);
      if (!job) return;
      clearTimeout(job.timer);
      if (data.error) job.reject(new Error(data.error));
      else job.resolve(JSON.parse(data.json));
    };
    page.worker.onerror = (event) => stop(new Error(event.message || "the worker failed"));
  }
  return new Promise((resolve, reject) => {
    const id = ++page.n;
    const timer = setTimeout(() => stop(new Error(`no layout in ${LAYOUT_MS / 1e3} s`)), LAYOUT_MS);
    page.jobs.set(id, { resolve, reject, timer });
    page.worker.postMessage({ id, dot });
  });
}

function stop(error) {
  page.worker?.terminate();
  page.worker = null;
  for (const job of page.jobs.values()) {
    clearTimeout(job.timer);
    job.reject(error);
  }
  page.jobs.clear();
}

// ------------------------------------------------------------------------- placements

// Graphviz's answer: positions in points, y upwards.
function read(json, names) {
  const [, , w, top] = json.bb.split(",").map(Number);
  const at = new Map(), frames = new Map(), paths = new Map(), ids = [];
  for (const o of json.objects ?? []) {
    const key = names.get(o.name);
    ids[o._gvid] = key;
    if (o.pos) {
      const [x, y] = o.pos.split(",").map(Number);
      at.set(key, { x, y: top - y });
    } else if (o.bb && key != null) {
      const [x0, y0, x1, y1] = o.bb.split(",").map(Number);
      frames.set(key, { x: x0, y: top - y1, w: x1 - x0, h: y1 - y0 });
    }
  }
  for (const e of json.edges ?? []) {
    const point = (p) => p.split(",").map(Number);
    let tip = null;
    const points = [];
    for (const p of e.pos.split(" ")) {
      if (p.startsWith("e,")) tip = point(p.slice(2));
      else if (!p.startsWith("s,")) points.push(point(p));
    }
    const xy = ([x, y]) => `${x.toFixed(1)} ${(top - y).toFixed(1)}`;
    let d = `M${xy(points[0])}`;
    for (let k = 1; k + 2 < points.length; k += 3)
      d += `C${xy(points[k])} ${xy(points[k + 1])} ${xy(points[k + 2])}`;
    if (tip) d += `L${xy(tip)}`;
    paths.set(`${ids[e.tail]}\u0000${ids[e.head]}`, d);
  }
  return { at, frames, paths, w, h: top };
}

// Without Graphviz: layers by longest path, boxes side by side.
function plain(shown) {
  const level = new Map([...shown.boxes.keys()].map((k) => [k, 0]));
  const forward = shown.arrows.filter((a) => shown.boxes.get(a.tail).at < shown.boxes.get(a.head).at);
  forward.sort((a, b) => shown.boxes.get(a.tail).at - shown.boxes.get(b.tail).at);
  for (const a of forward) level.set(a.head, Math.max(level.get(a.head), level.get(a.tail) + 1));
  const at = new Map(), paths = new Map(), x = new Map();
  let w = 0, h = 0;
  for (const [key, l] of level) {
    const b = shown.boxes.get(key), left = x.get(l) ?? 10;
    at.set(key, { x: left + b.w / 2, y: 30 + l * 70 });
    x.set(l, left + b.w + 20);
    w = Math.max(w, left + b.w + 10);
    h = Math.max(h, 60 + l * 70);
  }
  for (const a of shown.arrows) {
    const t = at.get(a.tail), u = at.get(a.head);
    paths.set(`${a.tail}\u0000${a.head}`, `M${t.x} ${t.y + 20}L${u.x} ${u.y - 21}`);
  }
  return { at, frames: new Map(), paths, w: Math.max(w, 10), h: Math.max(h, 10) };
}
