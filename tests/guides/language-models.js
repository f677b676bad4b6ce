// The tokenizer and element that the JavaScript of docs/language-models.md uses.
const tokenizer = {
  eos_token_id: 0,
  encode: (text) => Array.from(text, (letter) => 1 + (letter.charCodeAt(0) % 13)),
  decode: (tokens) => String.fromCharCode(...Array.from(tokens, (token) => 96 + Number(token))),
};
Object.assign(globalThis, { tokenizer, output: document.createElement("pre") });
