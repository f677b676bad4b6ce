/**
 * Secure aggregation: masks that only cancel in the sum; trainweb/federated/secure.py is the same, byte for byte.
 *
 * Each pair of members agrees on a secret (ECDH on P-256). HKDF-SHA256 makes a key of it, and AES-256 in counter mode a
 * stream of words. One of the two adds it to its numbers, the other one subtracts it. Numbers are integers modulo 2^32,
 * so the masks cancel exactly.
 *
 * After Bonawitz et al. (https://eprint.iacr.org/2017/281), without the shares that let a server go on when a member is
 * lost. Such a round has to be done again.
 */

import { badSetting, describe, refuseSettingIf } from "../data/checks.js";
import { checkOptions } from "../data/nearest.js";
import { CHECK_WORDS, POINT_BYTES } from "../wire/constants.js";
import { isObject } from "../wire/kinds.js";
import { refuseIf } from "../wire/messages.js";
import { Opaque } from "../wire/opaque.js";
import { checkPositive, checkVector } from "./updates.js";

const LARGEST = 2 ** 31 - 1;
const LABEL = "trainweb secure aggregation 1";
const CURVE = { name: "ECDH", namedCurve: "P-256" };
/** Names of members: restricted so that all sort names alike. */
const NAME = /^[!-~]{1,64}$/;

/** Settings that all members of a round agree on. */
export interface MaskOptions {
  /**
   * Bound on the magnitude of every element of an update, the same for all members. It may be the clip norm and the
   * most that noise may add. A larger bound makes the numbers coarser: the sum is exact to about `bound * members /
   * 2^31` per member.
   */
  readonly bound: number;
  /**
   * Share with which the update counts, above 0 and at most 1: its examples over the most that a client may have. The server
   * learns the sum of all weights, not each. Default 1.
   */
  readonly weight?: number;
}

/** The sum after the masks have cancelled. */
export interface MaskedSum {
  /** Sum of the updates, each times its weight. */
  readonly sum: Float64Array;
  /** Sum of the weights. */
  readonly weight: number;
}

/** A member of one round, with new keys. */
export class SecureMember extends Opaque {
  /** Its name among the members. */
  readonly name: string;
  /** 65 bytes, for all the others. */
  readonly publicKey: Uint8Array;
  readonly #round: string;
  readonly #privateKey: CryptoKey;
  #isUsed = false;

  private constructor(name: string, round: string, privateKey: CryptoKey, publicKey: Uint8Array) {
    super();
    this.name = name;
    this.publicKey = publicKey;
    this.#round = round;
    this.#privateKey = privateKey;
  }

  /**
   * Make a member with new keys; the private key cannot leave the browser.
   *
   * @param name - its name among the members: printable ASCII without spaces
   * @param round - the round's name, the same for all; no other round may have it
   * @param keys - of ECDH on P-256, in the place of new ones: for tests
   * @throws ModelError: an argument is out of range
   */
  static async create(name: string, round: string, keys?: CryptoKeyPair): Promise<SecureMember> {
    checkName("name", name);
    checkName("round", round);
    const { privateKey, publicKey } = keys ?? (await crypto.subtle.generateKey(CURVE, false, ["deriveBits"]));
    return new SecureMember(name, round, privateKey, new Uint8Array(await crypto.subtle.exportKey("raw", publicKey)));
  }

  /**
   * Mask an update, to be sent in its place; the result is five elements longer. Only once: two updates of one round
   * would reveal their difference.
   *
   * @param update - the update
   * @param publicKeys - keys of all members by name, this one among them
   * @param options - the settings that all members agree on, and the weight.
   * @throws ModelError: an element is beyond the bound, keys are wrong or two the same, or there are fewer than two
   *   members.
   * @throws SessionError: another update was masked already
   */
  async mask(
    update: Float32Array,
    publicKeys: Readonly<Record<string, Uint8Array>>,
    options: MaskOptions,
  ): Promise<Uint32Array> {
    const { bound, weight = 1 } = checkOptions("mask", options, { bound: true, weight: true });
    checkPositive("bound", bound);
    checkPositive("weight", weight, 1);
    checkVector("update", update);
    const members = this.#check(publicKeys);
    const largest = update.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
    refuseIf(largest > bound, "BEYOND_BOUND", { value: largest, bound });
    refuseIf(this.#isUsed, "MASKED_TWICE");
    this.#isUsed = true;
    const masked = new Uint32Array(update.length + 1 + CHECK_WORDS);
    const scale = scaleOf(bound, members.length);
    update.forEach((x, i) => {
      masked[i] = Math.floor(x * weight * scale + 0.5);
    });
    masked[update.length] = Math.floor(weight * scaleOf(1, members.length) + 0.5);
    for (const other of members.filter((member) => member !== this.name)) {
      const words = await this.#words(other, publicKeys[other] as Uint8Array, masked.length).catch((error: unknown) => {
        // No masked update has left the member.
        this.#isUsed = false;
        throw error;
      });
      const sign = this.name < other ? 1 : -1;
      words.forEach((word, i) => {
        masked[i] = (masked[i] as number) + sign * word;
      });
    }
    return masked;
  }

  #check(publicKeys: unknown): string[] {
    const isList = isObject(publicKeys) && Object.keys(publicKeys).length > 1;
    refuseSettingIf(!isList, "publicKeys", describe(publicKeys), "keys of two members or more");
    const keys = Object.entries(publicKeys as Readonly<Record<string, unknown>>);
    const texts = new Map<string, string>();
    for (const [name, key] of keys) {
      checkName("publicKeys", name);
      if (!(key instanceof Uint8Array) || key.length !== POINT_BYTES) {
        throw badSetting(`publicKeys['${name}']`, describe(key), `${POINT_BYTES} bytes`);
      }
      texts.set(name, key.join());
    }
    refuseIf(texts.get(this.name) !== this.publicKey.join(), "NO_MEMBER", { name: this.name });
    refuseIf(new Set(texts.values()).size < keys.length, "SAME_KEY");
    return [...texts.keys()].sort();
  }

  async #words(other: string, publicKey: Uint8Array, count: number): Promise<Uint32Array> {
    let point: CryptoKey;
    try {
      point = await crypto.subtle.importKey("raw", publicKey.slice(), CURVE, false, []);
    } catch {
      throw badSetting(`publicKeys['${other}']`, "other bytes", "a point of P-256");
    }
    const secret = await crypto.subtle.deriveBits({ name: "ECDH", public: point }, this.#privateKey, 256);
    const base = await crypto.subtle.importKey("raw", secret, "HKDF", false, ["deriveKey"]);
    const utf8 = new TextEncoder();
    const info = utf8.encode([LABEL, ...[this.name, other].sort()].join("\0"));
    const derivation = { name: "HKDF", hash: "SHA-256", salt: utf8.encode(this.#round), info };
    const key = await crypto.subtle.deriveKey(derivation, base, { name: "AES-CTR", length: 256 }, false, ["encrypt"]);
    const counter = { name: "AES-CTR", counter: new Uint8Array(16), length: 32 };
    return new Uint32Array(await crypto.subtle.encrypt(counter, key, new Uint8Array(4 * count)));
  }
}

/** @throws ModelError unless `given` is a name that sorts alike everywhere */
function checkName(what: string, name: unknown): void {
  refuseSettingIf(typeof name !== "string" || !NAME.test(name), what, name, "1 to 64 printable ASCII characters without spaces");
}

/** Steps of the fixed point in 1: the most, as a power of two, with which a sum cannot overflow. */
function scaleOf(bound: number, members: number): number {
  // Each number is rounded by half a step at most.
  return 2 ** Math.floor(Math.log2((LARGEST / members - 0.5) / bound));
}

/**
 * Add the members' updates, each times its weight, and the weights. Divide the sum by the sum of the weights for the
 * weighted mean. Single updates stay secret if the members were given the true keys of each other.
 *
 * @param masked - the vector of each member, by name
 * @param members - all members that were given each other's keys
 * @param options - the same settings as the members'.
 * @throws ModelError: there is no vector, vectors have several lengths, or the masks do not cancel, because a member
 *   had other keys.
 * @throws SessionError: a member is missing, so its masks remain in the sum. Begin a round with new keys and the
 *   present members
 */
export function addMasked(
  masked: Readonly<Record<string, Uint32Array>>,
  members: readonly string[],
  options: Pick<MaskOptions, "bound">,
): MaskedSum {
  const { bound } = checkOptions("addMasked", options, { bound: true });
  checkPositive("bound", bound);
  const areMembers = Array.isArray(members) && members.length > 1 && new Set(members).size === members.length;
  refuseSettingIf(!areMembers, "members", members, "the names of two members or more");
  members.forEach((name) => checkName("members", name));
  const missing = members.filter((name) => !Object.hasOwn(masked, name)).sort();
  refuseIf(missing.length > 0, "MEMBER_LOST", { names: missing.join(", ") });
  const first: unknown = masked[members[0] as string];
  if (Object.keys(masked).length !== members.length || !(first instanceof Uint32Array)) {
    throw badSetting("masked", Object.keys(masked), "one vector a member");
  }
  const total = new Uint32Array(first.length);
  for (const name of members) {
    const vector: unknown = masked[name];
    if (!(vector instanceof Uint32Array) || vector.length < 2 + CHECK_WORDS || total.length !== vector.length) {
      throw badSetting(`masked['${name}']`, describe(vector), "a Uint32Array, all of one length");
    }
    vector.forEach((word, i) => {
      total[i] = (total[i] as number) + word;
    });
  }
  refuseIf(total.subarray(-CHECK_WORDS).some((word) => word !== 0), "OTHER_MASKS");
  const values = new Int32Array(total.buffer).subarray(0, -CHECK_WORDS);
  const weight = (values.at(-1) as number) / scaleOf(1, members.length);
  const scale = scaleOf(bound, members.length);
  return { sum: Float64Array.from(values.subarray(0, -1), (value) => value / scale), weight };
}
