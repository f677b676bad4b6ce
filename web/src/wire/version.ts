/** Replaced by the build with the version of package.json. */
declare const TRAINWEB_VERSION: string;

export const VERSION: string = TRAINWEB_VERSION;

/** The Pyodide that the snapshot was made with and the package was tested with; any 314.x serves. */
export const PYODIDE_VERSION = "314.0.7";

/** Pyodide's binary interface. Package indices for another one are recognised by it. */
export const PYODIDE_ABI = "2026_0";
