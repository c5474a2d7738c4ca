// Segments as one long ribbon of bytes that is wrapped into rows: every pixel is as many bytes as every other.
const UNUSED = -1;
const RETURNABLE = -2;
const MAP_ROW = 22;

function memoryMap({ pieces, lines }) {
  const total = pieces.reduce((sum, [size]) => sum + size, 0) || 1;
  const segments = [];
  let at = 0;
  for (const piece of pieces) {
    const [size, segment] = piece;
    if (!segments[segment]) segments[segment] = { start: at, size: 0, used: 0 };
    segments[segment].size += size;
    if (piece[2] >= 0) segments[segment].used += size;
    piece.start = at;
    at += size;
  }
  const kinds = Math.min(lines.length, COLOURS.length);
  const colour = (owner) => owner === UNUSED ? "var(--unused)" : owner === RETURNABLE ? "var(--sheet)" : owner < kinds ? COLOURS[owner] : "var(--bar-before)";
  const words = (owner) => owner === UNUSED ? "unused, beside live blocks" : owner === RETURNABLE ? "unused: empty_cache() returns it" : lines[owner];
  const sums = new Map();
  for (const [size, , owner] of pieces) sums.set(owner, (sums.get(owner) || 0) + size);
  const told = h("p.told", { "aria-hidden": "true" });
  const tell = (piece) => {
    if (!piece) {
      told.replaceChildren(h("b", {}, bytes(total)), ` in ${count(segments.length, "segment")}, of which `, h("b", {}, bytes(sums.get(UNUSED) || 0)), " lie unused beside live blocks");
      return;
    }
    const segment = segments[piece[1]];
    told.replaceChildren(h("b", {}, bytes(piece[0])), " ", h("span.code", {}, elide(words(piece[2]), 120)), " ",
      h("span.muted", {}, `in segment ${piece[1] + 1} of ${segments.length}: ${bytes(segment.used)} of ${bytes(segment.size)} used`));
  };
  const box = h("div.map");

  function draw(width) {
    const rows = Math.max(1, Math.min(24, Math.ceil(segments.length / 4) + 2));
    const wide = total / rows;
    const picture = s("svg", { width, height: rows * MAP_ROW, role: "img",
      "aria-label": `${bytes(total)} of segments: ${bytes(sums.get(UNUSED) || 0)} unused beside live blocks, ${bytes(sums.get(RETURNABLE) || 0)} in segments that nothing uses` });
    const put = (name, start, size, options) => {
      for (let done = 0; done < size - 0.5;) {
        const row = Math.min(rows - 1, Math.floor((start + done) / wide + 1e-9));
        const part = Math.min(size - done, row === rows - 1 ? size - done : (row + 1) * wide - start - done);
        const x = ((start + done - row * wide) * width) / wide;
        picture.append(s(name, { x, y: row * MAP_ROW + 2, width: Math.max(0.4, (part * width) / wide), height: MAP_ROW - 4, ...options }));
        done += Math.max(part, 1);
      }
    };
    pieces.forEach((piece, i) => put("rect.piece", piece.start, piece[0], { style: { fill: colour(piece[2]) }, "data-i": i }));
    for (const segment of segments) {
      if (!segment) continue;
      const row = Math.min(rows - 1, Math.floor(segment.start / wide + 1e-9));
      const x = ((segment.start - row * wide) * width) / wide;
      picture.append(s("line.edge", { x1: x, x2: x, y1: row * MAP_ROW, y2: row * MAP_ROW + MAP_ROW }));
    }
    picture.addEventListener("pointermove", (event) => tell(pieces[event.target.getAttribute("data-i")]));
    picture.addEventListener("pointerleave", () => tell(null));
    box.replaceChildren(picture);
  }

  tell(null);
  drawn(box, draw);
  const listed = [...lines.slice(0, kinds).keys(), ...(lines.length > kinds ? [kinds] : []), RETURNABLE, UNUSED].filter((owner) => sums.get(owner));
  const rest = [...sums].filter(([owner]) => owner >= kinds).reduce((sum, [, size]) => sum + size, 0);
  return h("div.flame", {}, told, box, h("ul.legend", {}, listed.map((owner) => h("li", {}, h("i.swatch", { style: { background: colour(owner) } }),
    h("span.code", {}, owner === kinds ? count(lines.length - kinds, "other line") : elide(words(owner), 90)), " ", h("span.muted", {}, bytes(owner === kinds ? rest : sums.get(owner)))))));
}
