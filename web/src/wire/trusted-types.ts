/** The part of Trusted Types that is used here; TypeScript does not declare them. */

export interface TrustedTypes {
  createPolicy(name: string, rules: { createScriptURL(url: string): string }): TrustedTypePolicy;
}

export interface TrustedTypePolicy {
  createScriptURL(url: string): string;
}

/** The globals of a browser that has them. */
export interface WithTrustedTypes {
  readonly trustedTypes?: TrustedTypes;
}
