/** Colours as numbers for canvases: ramps between the style sheet's variables, safe for colour-blind readers. */

/** The colours of the style sheet in use, as [r, g, b]. */
export function readColours(node) {
  const style = getComputedStyle(node);
  const read = (name) => {
    const hex = style.getPropertyValue(name).trim().replace("#", "");
    return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
  };
  const colours = {};
  for (const name of ["surface", "weak", "query", "query-strong", "key", "fall", "rise", "loss", "worse", "better"])
    colours[name] = read(`--${name}`);
  return {
    pattern: ramp([colours.weak, colours.query, colours["query-strong"]]),
    change: ramp([colours.fall, colours.query, colours.weak, colours.key, colours.rise]),
    loss: ramp([colours.surface, colours.loss]),
    lens: ramp([colours.surface, colours.query]),
  };
}

/** 256 colours from the first to the last stop, packed as canvases keep them (ABGR). */
function ramp(stops) {
  const packed = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const [r, g, b] = stops[low].map((c, k) => Math.round(c + (stops[low + 1][k] - c) * (at - low)));
    packed[i] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return packed;
}

/** The colour at a share of a ramp, for style sheets. */
export function colourAt(packed, share) {
  const value = packed[Math.max(0, Math.min(255, Math.round(share * 255)))];
  return `rgb(${value & 255}, ${(value >> 8) & 255}, ${(value >> 16) & 255})`;
}

/**
 * Paints a T × T pattern, a pixel per cell; weights as √weight, so that small ones show. With `before`, the change:
 * the middle of the ramp is none.
 */
export function paintPattern(canvas, packed, after, start, length, before = null) {
  if (canvas.width !== length || canvas.height !== length) {
    canvas.width = length;
    canvas.height = length;
  }
  const context = canvas.getContext("2d", { willReadFrequently: true }); // kept by the processor: it only takes pixels
  const image = context.createImageData(length, length);
  const pixels = new Uint32Array(image.data.buffer);
  for (let q = 0; q < length; q++)
    for (let k = 0; k <= q; k++) {
      const at = q * length + k;
      const value = after[start + at] - (before ? before[start + at] : 0);
      const share = Math.sqrt(Math.min(1, Math.abs(value)));
      pixels[at] = packed[Math.round(before ? 127.5 + Math.sign(value) * 127.5 * share : 255 * share)];
    }
  context.putImageData(image, 0, 0);
}
