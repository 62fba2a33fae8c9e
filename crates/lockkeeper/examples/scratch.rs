//! x
use lockkeeper::*;
use std::time::*;
#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or("memory:".into());
    let c = Client::connect(&url).await?;
    let n = 100_000;
    for _ in 0..3 {
        let t0 = Instant::now();
        for _ in 0..n {
            c.mutex("b").acquire().await?.release().await?;
        }
        println!("release awaited, main thread: {:?}/cycle", t0.elapsed() / n);
    }
    c.close().await;
    Ok(())
}
