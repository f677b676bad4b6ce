/** Replaced by the build with the version of package.json. */
declare const TRAINWEB_VERSION: string;

export const VERSION: string = TRAINWEB_VERSION;
