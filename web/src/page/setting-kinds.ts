/** Kinds of the settings of optimizers, losses and schedules. */

/** The allowed values of a setting, in words (`expected`) and by rules. */
export type Kind =
  | {
      readonly kind: "number" | "integer";
      readonly expected: string;
      readonly least?: number;
      readonly above?: number;
      readonly most?: number;
      readonly below?: number;
    }
  | { readonly kind: "flag" | "flag or name" | "text" | "array" | "sizes"; readonly expected: string }
  | { readonly kind: "names"; readonly expected: string; readonly mayBeEmpty: boolean; readonly mayBeText?: boolean }
  | { readonly kind: "choice"; readonly expected: string; readonly options: readonly (string | number)[] }
  | { readonly kind: "several"; readonly expected: string; readonly count: number; readonly of: Kind };

/** A setting. */
export interface Setting {
  readonly kind: Kind;
  /** True if it may be null. */
  readonly isOptional?: boolean;
  /** Absent if the setting must be given. */
  readonly default?: unknown;
  /** Its name in Python, if that is not the same in snake case. */
  readonly python?: string;
  /** A name that is accepted beside the documented one. */
  readonly otherName?: string;
}

export type Settings = Readonly<Record<string, Setting>>;

/** A choice with its settings. */
export type Of<Name extends string, Fields> = { readonly type: Name } & Fields;

/** Settings with their defaults. */
export type Resolved<Fields> = { readonly [Name in keyof Fields]-?: Exclude<Fields[Name], undefined> };
