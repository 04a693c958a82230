// The search runs in a worker, which browsers refuse to pages that are read from a folder. There it runs in a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside.importScripts = (...scripts) => Promise.all(scripts.map((script) => this.load(script)));
      this.ready = this.load(new URL(address, document.baseURI).href);
      this.addEventListener("message", (event) => this.onmessage?.(event));
    }

    load(address) {
      const script = this.inside.document.createElement("script");
      script.src = address;
      this.inside.document.head.append(script);
      return new Promise((done, failed) => Object.assign(script, { onload: done, onerror: failed }));
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
