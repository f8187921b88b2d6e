// Browsers refuse web workers on pages from the file system. There, the search runs in a hidden frame instead.
// With another file name, Material for MkDocs would load a script with this name from the internet.
(() => {
  if (location.protocol !== "file:") return

  // Load a script into a document. The promise resolves when it has run.
  const load = (document, url) => new Promise((resolve, reject) => {
    const script = document.createElement("script")
    Object.assign(script, { src: url, onload: resolve, onerror: reject })
    document.body.append(script)
  })

  class FrameWorker extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inner = this.frame.contentWindow
      inner.document.open()
      inner.document.write("<body></body>")
      inner.document.close()
      // The functions that a worker has. Unlike there, importScripts is asynchronous, which the search expects.
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      inner.importScripts = async (...urls) => { for (const url of urls) await load(inner.document, url) }
      this.loaded = load(inner.document, url)
    }
    async postMessage(data) {
      await this.loaded
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }))
    }
    terminate() { this.frame.remove() }
  }

  window.Worker = window.IFrameWorker = FrameWorker // the search recognizes a frame by the second name
})()
