%% Evaluates what arrives on a port of loopback: the cookie, then expressions. The answer is what
%% they have written, and their value, or the error.
{ok, Listener} = gen_tcp:listen(0, [binary, {packet, 4}, {active, false}, {ip, {127, 0, 0, 1}}]),
{ok, Port} = inet:port(Listener),
Device = fun Device(Text) ->
	receive
		{io_request, From, As, Request} ->
			More = case Request of
				{put_chars, _, M, F, A} -> apply(M, F, A);
				{put_chars, _, Chars} -> Chars;
				_ -> []
			end,
			From ! {io_reply, As, ok},
			Device([Text, More]);
		{text, From} -> From ! {text, Text}
	end
end,
Await = fun
	Await(0) -> ok;
	Await(N) -> rabbit:is_running() orelse begin timer:sleep(20), Await(N - 1) end
end,
Evaluate = fun(Code) ->
	Await(500),
	Written = spawn(fun() -> Device([]) end),
	group_leader(Written, self()),
	Value = try
		{ok, Tokens, _} = erl_scan:string(unicode:characters_to_list(Code)),
		{ok, Parsed} = erl_parse:parse_exprs(Tokens),
		{value, V, _} = erl_eval:exprs(Parsed, []),
		{"value ", V}
	catch Class:Reason:Stack -> {"", {Class, Reason, Stack}}
	end,
	Written ! {text, self()},
	receive
		{text, Text} ->
			{Prefix, Result} = Value,
			unicode:characters_to_binary([Prefix, Text, io_lib:format("~p~n", [Result])])
	end
end,
Serve = fun Serve() ->
	{ok, Socket} = gen_tcp:accept(Listener),
	Server = spawn(fun() ->
		receive yours -> ok end,
		case gen_tcp:recv(Socket, 0) of
			{ok, <<"COOKIE", Code/binary>>} -> gen_tcp:send(Socket, Evaluate(Code));
			_ -> ok
		end,
		gen_tcp:close(Socket)
	end),
	ok = gen_tcp:controlling_process(Socket, Server),
	Server ! yours,
	Serve()
end,
Owner = spawn(fun() -> receive yours -> Serve() end end),
ok = gen_tcp:controlling_process(Listener, Owner),
Owner ! yours,
ok = file:write_file("PORTFILE", integer_to_list(Port) ++ "\n").
