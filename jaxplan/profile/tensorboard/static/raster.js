// Many points as one picture: each pixel is as opaque as points lie on it. A million cost no more than a copy.

/** Paints squares of `side` pixels at (xs(i), ys(i)) for i below count, in a CSS color, `faint` for a single one. */
export function paintPoints(context, width, height, count, xs, ys, side, color, faint) {
  const columns = Math.ceil(width),
    lines = Math.ceil(height),
    hits = new Uint32Array(columns * lines),
    half = (side - 1) / 2;
  for (let i = 0; i < count; i++) {
    const left = Math.round(xs(i) - half),
      top = Math.round(ys(i) - half);
    if (!(left >= 0 && top >= 0 && left + side <= columns && top + side <= lines)) continue;
    for (let y = top; y < top + side; y++) for (let x = left; x < left + side; x++) hits[y * columns + x]++;
  }
  const layer = new OffscreenCanvas(columns, lines),
    brush = layer.getContext("2d");
  brush.fillStyle = color;
  brush.fillRect(0, 0, 1, 1);
  const [red, green, blue] = brush.getImageData(0, 0, 1, 1).data,
    image = brush.createImageData(columns, lines),
    opaque = Array.from({ length: 64 }, (_, n) => Math.round(255 * (1 - (1 - faint) ** n)));
  for (let i = 0; i < hits.length; i++) {
    if (hits[i]) image.data.set([red, green, blue, opaque[Math.min(63, hits[i])]], 4 * i);
  }
  brush.putImageData(image, 0, 0);
  context.drawImage(layer, 0, 0);
}
