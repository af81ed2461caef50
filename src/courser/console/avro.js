// Avro to values: object container files, which carry their schema (https://avro.apache.org/docs/1.12.0/specification/).
// Bytes of one object without its schema cannot be read by anybody, and are recognised by their mark only.

import { parse } from "./json.js";
import { hexOf } from "./msgpack.js";

const MAGIC = [0x4f, 0x62, 0x6a, 0x01];
const SINGLE_OBJECT = [0xc3, 0x01];
const SYNC_SIZE = 16;
const DEPTH_MAX = 100;
const COUNT_MAX = 10_000;
const TEXT = new TextDecoder("utf-8", { fatal: true });

/** @typedef {any} Schema */

/** @param {Uint8Array} bytes @param {number[]} mark */
const starts = (bytes, mark) => mark.every((byte, index) => bytes[index] === byte);

/** @param {Uint8Array} bytes */
export const isAvroContainer = (bytes) => starts(bytes, MAGIC);
/** Whether it is one object that names its schema by a fingerprint. @param {Uint8Array} bytes */
export const isAvroSingleObject = (bytes) => bytes.length > 10 && starts(bytes, SINGLE_OBJECT);

/** The fingerprint of the schema of one object, in hexadecimal digits. @param {Uint8Array} bytes */
export const avroFingerprint = (bytes) => hexOf(bytes.slice(2, 10).reverse());

class Reader {
  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    this._bytes = bytes;
    this.position = 0;
  }

  get isAtEnd() {
    return this.position >= this._bytes.length;
  }

  /** @param {number} size */
  take(size) {
    if (size < 0 || this.position + size > this._bytes.length) throw new RangeError("the bytes end too early");
    this.position += size;
    return this._bytes.subarray(this.position - size, this.position);
  }

  long() {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = this.take(1)[0];
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) {
        const number = (value >> 1n) ^ -(value & 1n);
        return Number.isSafeInteger(Number(number)) ? Number(number) : number;
      }
    }
    throw new RangeError("a number is too long");
  }

  size() {
    return Number(this.long());
  }

  bytes() {
    return this.take(this.size());
  }

  text() {
    return TEXT.decode(this.bytes());
  }

  /** @param {4 | 8} size */
  float(size) {
    const part = this.take(size);
    const view = new DataView(part.buffer, part.byteOffset, size);
    return size === 4 ? view.getFloat32(0, true) : view.getFloat64(0, true);
  }
}

/**
 * The objects of a container file. Throws if the bytes are none, or are compressed in a way that browsers do not know.
 *
 * @param {Uint8Array} bytes
 * @returns {Promise<unknown[]>}
 */
export async function decodeAvro(bytes) {
  const reader = new Reader(bytes);
  if (!isAvroContainer(bytes)) throw new RangeError("no container file");
  reader.take(MAGIC.length);
  const meta = readBlocks(reader, () => /** @type {[string, Uint8Array]} */ ([reader.text(), reader.bytes()]));
  const entries = new Map(meta);
  const schema = parse(TEXT.decode(entries.get("avro.schema") ?? new Uint8Array()));
  const codec = TEXT.decode(entries.get("avro.codec") ?? new Uint8Array());
  const types = new Types(schema);
  const mark = hexOf(reader.take(SYNC_SIZE));
  const values = [];
  while (!reader.isAtEnd && values.length < COUNT_MAX) {
    const count = reader.size();
    const block = new Reader(await unpack(codec, reader.bytes()));
    for (let index = 0; index < count && values.length < COUNT_MAX; index += 1) values.push(types.read(block, schema, 0));
    if (hexOf(reader.take(SYNC_SIZE)) !== mark) throw new RangeError("a block does not end with the mark of the file");
  }
  return values;
}

/** @param {string} codec @param {Uint8Array} block */
async function unpack(codec, block) {
  if (codec === "" || codec === "null") return block;
  if (codec !== "deflate") throw new Error(`blocks are compressed with ${codec}, which browsers cannot read`);
  const stream = new Blob([new Uint8Array(block)]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** @template Item @param {Reader} reader @param {() => Item} readItem @returns {Item[]} */
function readBlocks(reader, readItem) {
  const items = [];
  for (;;) {
    let count = reader.size();
    if (count === 0) return items;
    if (count < 0) {
      count = -count;
      reader.long();
    }
    if (count > 10_000_000) throw new RangeError("a block is too long");
    for (let index = 0; index < count; index += 1) items.push(readItem());
  }
}

/** The types that a schema names. */
class Types {
  /** @param {Schema} schema */
  constructor(schema) {
    /** @type {Map<string, Schema>} */
    this._named = new Map();
    this._collect(schema, "");
  }

  /** @param {Schema} schema @param {string} space */
  _collect(schema, space) {
    if (Array.isArray(schema)) schema.forEach((part) => this._collect(part, space));
    if (schema === null || typeof schema !== "object" || Array.isArray(schema)) return;
    const own = schema.namespace ?? space;
    if (typeof schema.name === "string" && schema.type !== undefined && ["record", "error", "enum", "fixed"].includes(schema.type)) {
      this._named.set(schema.name, schema);
      this._named.set(`${own}.${schema.name}`, schema);
    }
    for (const field of schema.fields ?? []) this._collect(field.type, own);
    for (const part of [schema.items, schema.values, typeof schema.type === "object" ? schema.type : undefined]) this._collect(part, own);
  }

  /** @param {Reader} reader @param {Schema} schema @param {number} depth @returns {unknown} */
  read(reader, schema, depth) {
    if (depth > DEPTH_MAX) throw new RangeError("nested too deeply");
    if (Array.isArray(schema)) return this.read(reader, schema[reader.size()], depth + 1);
    const type = typeof schema === "string" ? schema : schema?.type;
    switch (type) {
      case "null": return null;
      case "boolean": return reader.take(1)[0] === 1;
      case "int": case "long": return reader.long();
      case "float": return reader.float(4);
      case "double": return reader.float(8);
      case "bytes": return `0x${hexOf(reader.bytes())}`;
      case "string": return reader.text();
      case "fixed": return `0x${hexOf(reader.take(Number(schema.size)))}`;
      case "enum": return schema.symbols[reader.size()];
      case "array": return readBlocks(reader, () => this.read(reader, schema.items, depth + 1));
      case "map": return Object.fromEntries(readBlocks(reader, () => [reader.text(), this.read(reader, schema.values, depth + 1)]));
      case "record": case "error":
        return Object.fromEntries(schema.fields.map((/** @type {Schema} */ field) => [field.name, this.read(reader, field.type, depth + 1)]));
      default: {
        const named = typeof type === "object" ? type : this._named.get(type);
        if (named === undefined) throw new RangeError(`the schema does not say what ${String(type)} is`);
        return this.read(reader, named, depth + 1);
      }
    }
  }
}
