// What the JavaScript of the guides takes as given, with the types of a user's own.
import type { PreTrainedTokenizer } from "@huggingface/transformers";
import type { Dataset, FitEvent, FitOptions, Tensor, TrainingConfig, TrainingSession } from "trainweb";

declare global {
  const session: TrainingSession, regressor: TrainingSession;
  const data: Record<string, Tensor>, feeds: Record<string, Tensor>, houses: Dataset;
  const x: Tensor, points: Tensor, labels: Tensor, kinds: Tensor, ages: Tensor, w: Tensor;
  const config: TrainingConfig, options: FitOptions, tokenizer: PreTrainedTokenizer;
  const file: Blob, handle: FileSystemFileHandle;
  const output: HTMLElement, picture: HTMLElement, link: HTMLAnchorElement, progress: HTMLProgressElement;
  function chart(event: FitEvent): void;
  function showDirectoryPicker(): Promise<FileSystemDirectoryHandle>;
}
