/** @jest-environment jsdom */
import { Dataset, Tensor, TrainingSession } from "trainweb";

test("in jsdom the import works, and a session says what is lacking", async () => {
  expect(typeof document).toBe("object");
  const points = new Tensor("float32", [0, 0, 1, 1], [2, 2]);
  expect(new Dataset({ points, labels: [0, 1] }).size).toBe(2);
  const made = TrainingSession.createFromModel("first.onnx", { loss: "CrossEntropyLoss", optimizer: "SGD" });
  await expect(made).rejects.toThrow("Worker");
});
