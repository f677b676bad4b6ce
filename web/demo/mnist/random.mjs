// Seeded randomness, shared by the page and by the script that splits the data.

/**
 * Mulberry32 by Tommy Ettinger: a 32-bit generator that is equal on every machine.
 * @param {number} seed
 * @returns {() => number} uniform in [0, 1)
 */
export function mulberry32(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/**
 * The numbers 0 to count - 1 in an order that the seed determines (Fisher-Yates).
 * @param {number} count
 * @param {number} seed
 * @returns {Uint32Array}
 */
export function shuffledIndices(count, seed) {
  const random = mulberry32(seed);
  const indices = Uint32Array.from({ length: count }, (_, i) => i);
  for (let i = count - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [indices[i], indices[j]] = [indices[j], indices[i]];
  }
  return indices;
}
