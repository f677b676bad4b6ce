/** Models are bundled as base64: no bundler and no policy can keep them from the page. */
declare module "*.onnx" {
  const base64: string;
  export default base64;
}
