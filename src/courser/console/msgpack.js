// MessagePack to values: https://github.com/msgpack/msgpack/blob/master/spec.md. Integers of 64 bits stay exact.

const DEPTH_MAX = 100;
const TEXT = new TextDecoder("utf-8", { fatal: true });

/** Bytes inside a value: shown as hexadecimal digits. @param {Uint8Array} bytes */
export const hexOf = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

/** Reads numbers, most significant byte first. Throws a RangeError at the end. */
class Reader {
  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    this._bytes = bytes;
    this._view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.position = 0;
  }

  get isAtEnd() {
    return this.position === this._bytes.length;
  }

  /** @param {1 | 2 | 4} size */
  unsigned(size) {
    const at = this._move(size);
    return size === 1 ? this._view.getUint8(at) : size === 2 ? this._view.getUint16(at) : this._view.getUint32(at);
  }

  /** @param {1 | 2 | 4} size */
  signed(size) {
    const at = this._move(size);
    return size === 1 ? this._view.getInt8(at) : size === 2 ? this._view.getInt16(at) : this._view.getInt32(at);
  }

  /** @param {boolean} isSigned */
  long(isSigned) {
    const at = this._move(8);
    return exact(isSigned ? this._view.getBigInt64(at) : this._view.getBigUint64(at));
  }

  /** @param {4 | 8} size */
  float(size) {
    const at = this._move(size);
    return size === 4 ? this._view.getFloat32(at) : this._view.getFloat64(at);
  }

  /** @param {number} size */
  bytes(size) {
    const at = this._move(size);
    return this._bytes.subarray(at, at + size);
  }

  /** @param {number} size */
  _move(size) {
    const at = this.position;
    if (at + size > this._bytes.length) throw new RangeError("the bytes end too early");
    this.position += size;
    return at;
  }
}

/** @param {bigint} value */
const exact = (value) => (Number.isSafeInteger(Number(value)) ? Number(value) : value);

/** The value that all of the bytes stand for. Throws if they are no MessagePack. @param {Uint8Array} bytes @returns {unknown} */
export function decodeMessagePack(bytes) {
  const reader = new Reader(bytes);
  const value = read(reader, 0);
  if (!reader.isAtEnd) throw new RangeError("bytes follow the value");
  return value;
}

/** @param {Reader} reader @param {number} depth @returns {unknown} */
function read(reader, depth) {
  if (depth > DEPTH_MAX) throw new RangeError("nested too deeply");
  const kind = reader.unsigned(1);
  if (kind < 0x80) return kind;
  if (kind < 0x90) return readMap(reader, kind & 0x0f, depth);
  if (kind < 0xa0) return readArray(reader, kind & 0x0f, depth);
  if (kind < 0xc0) return TEXT.decode(reader.bytes(kind & 0x1f));
  if (kind >= 0xe0) return kind - 0x100;
  switch (kind) {
    case 0xc0: return null;
    case 0xc2: return false;
    case 0xc3: return true;
    case 0xc4: case 0xc5: case 0xc6: return `0x${hexOf(reader.bytes(reader.unsigned(width(kind - 0xc4))))}`;
    case 0xc7: case 0xc8: case 0xc9: return readExtension(reader, reader.unsigned(width(kind - 0xc7)));
    case 0xca: return reader.float(4);
    case 0xcb: return reader.float(8);
    case 0xcc: case 0xcd: case 0xce: return reader.unsigned(width(kind - 0xcc));
    case 0xcf: return reader.long(false);
    case 0xd0: case 0xd1: case 0xd2: return reader.signed(width(kind - 0xd0));
    case 0xd3: return reader.long(true);
    case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return readExtension(reader, 1 << (kind - 0xd4));
    case 0xd9: case 0xda: case 0xdb: return TEXT.decode(reader.bytes(reader.unsigned(width(kind - 0xd9))));
    case 0xdc: return readArray(reader, reader.unsigned(2), depth);
    case 0xdd: return readArray(reader, reader.unsigned(4), depth);
    case 0xde: return readMap(reader, reader.unsigned(2), depth);
    case 0xdf: return readMap(reader, reader.unsigned(4), depth);
    default: throw new RangeError("no such kind of value");
  }
}

/** @param {number} step @returns {1 | 2 | 4} */
const width = (step) => /** @type {1 | 2 | 4} */ (1 << step);

/** @param {Reader} reader @param {number} count @param {number} depth */
function readArray(reader, count, depth) {
  const values = [];
  for (let index = 0; index < count; index += 1) values.push(read(reader, depth + 1));
  return values;
}

/** @param {Reader} reader @param {number} count @param {number} depth */
function readMap(reader, count, depth) {
  /** @type {Map<string, unknown>} */
  const values = new Map();
  for (let index = 0; index < count; index += 1) {
    const key = read(reader, depth + 1);
    values.set(typeof key === "string" ? key : String(key), read(reader, depth + 1));
  }
  return Object.fromEntries(values);
}

/** @param {Reader} reader @param {number} size */
function readExtension(reader, size) {
  const kind = reader.signed(1);
  return { extension: kind, bytes: `0x${hexOf(reader.bytes(size))}` };
}
