/** Replaced by the build with the version of package.json. */
declare const TRAINWEB_VERSION: string;

export const VERSION: string = TRAINWEB_VERSION;

/** The Pyodide that the snapshot was made with and the package was tested with; any 314.x serves. */
export const PYODIDE_VERSION = "314.0.7";

/** Its binary interface, by which it tells package indices that are not for it. */
export const PYODIDE_ABI = "2026_0";
