/** Characters as numbers: the printable ones of ASCII, and the line feed. */

const FIRST = 32;
const LAST = 126;
const LINE_FEED = LAST - FIRST + 1;

/** Signs of printed books, and what a typewriter has for them. */
const TYPED: Readonly<Record<string, string>> = {
  "‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "--", "…": "...", "\u00a0": " ", "\t": " ", "ß": "ss", "æ": "ae", "œ": "oe",
};

/** The numbers of a text. Accents are removed, and characters that the alphabet lacks are left out. */
export function numbersOf(text: string): number[] {
  const typed = text.replaceAll("\r\n", "\n").replaceAll(/[^\n -~]/gu, (sign) => TYPED[sign] ?? sign.normalize("NFD"));
  const numbers: number[] = [];
  for (const sign of typed) {
    const code = sign.codePointAt(0) as number;
    if (code >= FIRST && code <= LAST) {
      numbers.push(code - FIRST);
    } else if (sign === "\n") {
      numbers.push(LINE_FEED);
    }
  }
  return numbers;
}

export function characterOf(number: number): string {
  return number === LINE_FEED ? "\n" : String.fromCodePoint(FIRST + number);
}
