// The declarations of @huggingface/transformers 4.3.2 that concern tokenizers, shortened (Apache License 2.0).
export class Tensor {
  constructor(type: string, data: BigInt64Array, dims: number[]);
  set dims(value: number[]);
  get dims(): number[];
  get type(): string;
  get data(): BigInt64Array;
  get size(): number;
  get location(): string;
  ort_tensor: object;
  dispose(): void;
}
export type BatchEncoding<TItem> = { input_ids: TItem; attention_mask: TItem; token_type_ids?: TItem };
export type Item<TText, TReturnTensor> = TReturnTensor extends true ? Tensor : TText extends string ? number[] : number[][];
export type Message = {
  role: "user" | "assistant" | "system" | (string & {});
  content: string | { type: string & {}; [key: string]: any }[];
};
export interface PreTrainedTokenizer {
  <TText extends string | string[], TReturnTensor extends boolean = true>(
    text: TText,
    options?: { padding?: boolean | "max_length"; return_tensor?: TReturnTensor },
  ): BatchEncoding<Item<TText, TReturnTensor>>;
  eos_token_id: number;
  chat_template: any;
  encode(text: string, options?: { text_pair?: string | null; add_special_tokens?: boolean }): number[];
  decode(token_ids: number[] | bigint[] | Tensor, decode_args?: { skip_special_tokens?: boolean }): string;
  apply_chat_template<TTokenize extends boolean = true, TReturnDict extends boolean = true>(
    conversation: Message[],
    options?: { tokenize?: TTokenize; return_dict?: TReturnDict; add_generation_prompt?: boolean },
  ): TTokenize extends false ? string : TReturnDict extends true ? BatchEncoding<Tensor> : Tensor;
}
export class AutoTokenizer {
  static from_pretrained(name: string, options?: object): Promise<PreTrainedTokenizer>;
}
export const env: { allowLocalModels: boolean };
