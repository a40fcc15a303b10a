from loadstone.commands import main

main()
