from loadstone.cli import main

main()
