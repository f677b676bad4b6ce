/**
 * A class with private fields, which no proxy can reach. Vue and Alpine leave objects with this mark as they are, as
 * Vue's `markRaw` does.
 */
export class Opaque {
  static {
    Object.defineProperty(this.prototype, "__v_skip", { value: true });
  }
}
