// Text of an element as page.py packs it: by LZMA, in base 85.

// Python's alphabet of base 85, but ' for <, which could end the script element.
const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;'=>?@^_`{|}~";
const bytesOf = (text) => {
  const digits = new Uint8Array(128);
  [...DIGITS].forEach((digit, value) => (digits[digit.charCodeAt(0)] = value));
  const whole = text.padEnd(Math.ceil(text.length / 5) * 5, "~");
  const bytes = new DataView(new ArrayBuffer((whole.length / 5) * 4));
  for (let at = 0, to = 0; at < whole.length; to += 4) {
    let value = 0;
    for (const end = at + 5; at < end; at++) value = value * 85 + digits[whole.charCodeAt(at)];
    bytes.setUint32(to, value);
  }
  return new Uint8Array(bytes.buffer, 0, Math.floor((text.length * 4) / 5));
};

// A file of the old kind, .lzma: 13 bytes of header, of which the sizes are not needed, and an end marker.
// Source: Igor Pavlov, LZMA specification (public domain), by whose names the places of probabilities go.
const IsMatch = 0, IsRep = 192, IsRepG0 = 204, IsRepG1 = 216, IsRepG2 = 228, IsRep0Long = 240;
const PosSlot = 432, Pos = 688, Align = 803, Len = 819, RepLen = 1333, Literal = 1847;
const END = 0xffffffff;
const unlzma = (input) => {
  const lc = input[0] % 9, lp = Math.floor(input[0] / 9) % 5, pb = Math.floor(input[0] / 45);
  const probabilities = new Uint16Array(Literal + (0x300 << (lc + lp))).fill(1024);
  let output = new Uint8Array(8 * input.length), to = 0;
  let at = 18, range = END, code = new DataView(input.buffer, input.byteOffset).getUint32(14);

  const normalised = () => {
    if (range < 0x1000000) {
      range = (range << 8) >>> 0;
      code = ((code << 8) | input[at++]) >>> 0;
    }
  };
  const bit = (place) => {
    const p = probabilities[place], bound = (range >>> 11) * p, one = code >= bound;
    if (one) {
      range -= bound;
      code -= bound;
      probabilities[place] = p - (p >>> 5);
    } else {
      range = bound;
      probabilities[place] = p + ((2048 - p) >>> 5);
    }
    normalised();
    return one ? 1 : 0;
  };
  const tree = (place, bits) => {
    let node = 1;
    for (let k = 0; k < bits; k++) node = (node << 1) | bit(place + node);
    return node - (1 << bits);
  };
  const reversed = (place, bits) => {
    let node = 1, value = 0;
    for (let k = 0; k < bits; k++) {
      const one = bit(place + node);
      node = (node << 1) | one;
      value |= one << k;
    }
    return value;
  };
  const direct = (bits) => {
    let value = 0;
    for (let k = 0; k < bits; k++) {
      range >>>= 1;
      const one = code >= range;
      if (one) code -= range;
      value = (value << 1) | (one ? 1 : 0);
      normalised();
    }
    return value;
  };
  const length = (place, aligned) => {
    if (!bit(place)) return tree(place + 2 + 8 * aligned, 3);
    if (!bit(place + 1)) return 8 + tree(place + 130 + 8 * aligned, 3);
    return 16 + tree(place + 258, 8);
  };
  const distance = (size) => {
    const slot = tree(PosSlot + 64 * Math.min(size, 3), 6);
    if (slot < 4) return slot;
    const bits = (slot >> 1) - 1, base = ((2 | (slot & 1)) << bits) >>> 0;
    if (slot < 14) return base + reversed(Pos + base - slot, bits);
    return base + 16 * direct(bits - 4) + reversed(Align, 4);
  };
  const put = (byte) => {
    if (to === output.length) {
      const larger = new Uint8Array(2 * output.length);
      larger.set(output);
      output = larger;
    }
    output[to++] = byte;
  };
  const literal = (before, matched) => {
    const place = Literal + 0x300 * (((to & ((1 << lp) - 1)) << lc) + (before >> (8 - lc)));
    let symbol = 1;
    for (let other = matched; matched >= 0 && symbol < 0x100; other <<= 1) {
      const expected = (other >> 7) & 1, one = bit(place + ((1 + expected) << 8) + symbol);
      symbol = (symbol << 1) | one;
      if (one !== expected) break;
    }
    while (symbol < 0x100) symbol = (symbol << 1) | bit(place + symbol);
    return symbol & 0xff;
  };

  let state = 0, rep0 = 0, rep1 = 0, rep2 = 0, rep3 = 0;
  for (;;) {
    const aligned = to & ((1 << pb) - 1);
    if (!bit(IsMatch + 16 * state + aligned)) {
      put(literal(to ? output[to - 1] : 0, state < 7 ? -1 : output[to - rep0 - 1]));
      state = state < 4 ? 0 : state < 10 ? state - 3 : state - 6;
      continue;
    }
    let size;
    if (!bit(IsRep + state)) {
      [rep1, rep2, rep3] = [rep0, rep1, rep2];
      size = length(Len, aligned);
      rep0 = distance(size);
      if (rep0 === END) return output.subarray(0, to);
      state = state < 7 ? 7 : 10;
    } else {
      if (!bit(IsRepG0 + state)) {
        if (!bit(IsRep0Long + 16 * state + aligned)) {
          put(output[to - rep0 - 1]);
          state = state < 7 ? 9 : 11;
          continue;
        }
      } else if (!bit(IsRepG1 + state)) {
        [rep0, rep1] = [rep1, rep0];
      } else if (!bit(IsRepG2 + state)) {
        [rep0, rep1, rep2] = [rep2, rep0, rep1];
      } else {
        [rep0, rep1, rep2, rep3] = [rep3, rep0, rep1, rep2];
      }
      size = length(RepLen, aligned);
      state = state < 7 ? 8 : 11;
    }
    for (let k = 0; k < size + 2; k++) put(output[to - rep0 - 1]);
  }
};

const unpacked = (id) => new TextDecoder().decode(unlzma(bytesOf(document.getElementById(id).textContent.trim())));
