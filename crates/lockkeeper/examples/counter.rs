//! Several tasks increment a number in a file, one at a time.
//!
//! `cargo run -p lockkeeper --example counter`

use lockkeeper::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scratch = tempfile::tempdir()?;
    let number = scratch.path().join("number");
    std::fs::write(&number, "0")?;

    let client = Client::connect(format!("file://{}/locks", scratch.path().display())).await?;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (client, number) = (client.clone(), number.clone());
        tasks.spawn(async move {
            let raise = async |_: &lockkeeper::Guard| -> std::io::Result<()> {
                let before: u64 = std::fs::read_to_string(&number)?.parse().unwrap_or(0);
                tokio::task::yield_now().await;
                std::fs::write(&number, (before + 1).to_string())
            };
            client.mutex("number").run(raise).await
        });
    }
    for done in tasks.join_all().await {
        done??;
    }

    let total = std::fs::read_to_string(&number)?;
    println!("a hundred tasks raised the number to {total}");
    assert_eq!(total, "100");
    client.close().await;
    Ok(())
}
