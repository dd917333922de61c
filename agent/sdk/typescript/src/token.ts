/** Fencing tokens, which compare as numbers. */

const FORM = /^(\d{1,20})\.(\d{1,20})$/;
const DIGITS = 20;
const NUMBER_MAX = 2n ** 64n - 1n;

/**
 * A token, EPOCH.SEQ. In JSON, in logs and in a template it is its text, and it compares by its
 * numbers: `1.9` is less than `1.10`, where the texts compare the other way round.
 *
 * Two tokens may also be compared with `<`, `<=`, `>` and `>=`. Equal ones are two objects: use
 * `equals`.
 */
export class Token {
  /** The number of the leader's term. */
  readonly epoch: bigint;
  /** Counts the grants of a term. */
  readonly seq: bigint;

  /** Reads EPOCH.SEQ. Throws a RangeError for anything else. */
  constructor(text: string) {
    const [, epoch, seq] = FORM.exec(text) ?? [];
    if (epoch === undefined || seq === undefined) {
      throw new RangeError(`invalid token "${text}": expected EPOCH.SEQ, for example 8.17`);
    }
    this.epoch = BigInt(epoch);
    this.seq = BigInt(seq);
    if (this.epoch > NUMBER_MAX || this.seq > NUMBER_MAX) {
      throw new RangeError(`invalid token "${text}": its numbers have at most 64 bits`);
    }
  }

  /** Negative where this token is lower than the other one, positive where it is higher, else 0. */
  compare(other: Token): number {
    const [a, b] = this.epoch === other.epoch ? [this.seq, other.seq] : [this.epoch, other.epoch];
    return a < b ? -1 : Number(a > b);
  }

  /** Whether both are the same token. */
  equals(other: Token): boolean {
    return this.compare(other) === 0;
  }

  /** A text of 41 characters that compares as the token does, for a store with texts only. */
  sortable(): string {
    const padded = (number: bigint): string => number.toString().padStart(DIGITS, "0");
    return `${padded(this.epoch)}.${padded(this.seq)}`;
  }

  toString(): string {
    return `${this.epoch}.${this.seq}`;
  }

  toJSON(): string {
    return this.toString();
  }

  /** What `<` compares. */
  [Symbol.toPrimitive](hint: string): bigint | string {
    return hint === "number" ? (this.epoch << 64n) | this.seq : this.toString();
  }
}
